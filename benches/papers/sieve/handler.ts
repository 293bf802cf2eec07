// The sieve as an action: a handler of CWASI's guest ABI (docs/abi.md). Parameters are `{"limit":NUMBER}`.
import { sieve } from "./sieve";

@unmanaged class Response { ptr: usize; len: u32; }

// Aligns, and stores the address of the block in front of the result.
export function cwasi_alloc(len: u32, align: u32): usize {
  const block = heap.alloc(len + align + 4);
  const at = (block + 4 + align - 1) & ~(align - 1);
  store<usize>(at - 4, block, 0);
  return at;
}

export function cwasi_free(ptr: usize, len: u32, align: u32): void {
  heap.free(load<usize>(ptr - 4));
}

// Held by a global: the host takes the response after cwasi_handle has returned.
let result: ArrayBuffer = new ArrayBuffer(0);

export function cwasi_handle(payload: usize, payloadLen: u32, response: Response): i32 {
  const parameters = String.UTF8.decodeUnsafe(payload, payloadLen);
  const limit = parameters.slice(parameters.indexOf(":") + 1, -1);
  result = String.UTF8.encode(`{"result":${sieve(I32.parseInt(limit))}}`);
  response.ptr = changetype<usize>(result);
  response.len = result.byteLength;
  return 0;
}
