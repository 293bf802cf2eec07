// An action server of OpenWhisk's protocol in node.js, for one action: `/init` delivers a TypeScript module whose
// function `sieve` gets the parameter `limit`. Listens at the port in PORT.
import { mkdirSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";

let action;

async function answer(path, value) {
  if (path === "/init") {
    mkdirSync("/action", { recursive: true });
    writeFileSync("/action/sieve.ts", Buffer.from(value.code, "base64"));
    action = await import("/action/sieve.ts");
    return { ok: true };
  }
  return { result: action.sieve(value.limit) };
}

createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  let status = 200;
  let body;
  try {
    body = await answer(request.url, JSON.parse(Buffer.concat(parts)).value);
  } catch (error) {
    status = 502;
    body = { error: String(error) };
  }
  const text = JSON.stringify(body);
  response.writeHead(status, { "content-type": "application/json", "content-length": Buffer.byteLength(text) });
  response.end(text);
}).listen(Number(process.env.PORT), "0.0.0.0");
