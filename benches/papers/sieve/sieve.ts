// How many prime numbers are there up to `limit`, which is 3 or more? The sieve of Eratosthenes, over odd numbers.
// AssemblyScript compiles this file, and node.js runs it without its types.
export function sieve(limit: i32): i32 {
  const count = (limit - 1) >> 1; // odd numbers from 3
  const composite = new Array<i32>((count >> 5) + 1).fill(0);
  const primes: i32[] = [2];
  for (let i = 0; i < count; i++) {
    if (composite[i >> 5] & (1 << (i & 31))) continue;
    const prime = i + i + 3;
    primes.push(prime);
    if (prime > limit / prime) continue;
    for (let j = (prime * prime - 3) >> 1; j < count; j += prime) composite[j >> 5] |= 1 << (j & 31);
  }
  return primes.length;
}
