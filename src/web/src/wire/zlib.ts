/** zlib streams, never larger than the reader is ready for. */

/** One slice of a stream becomes at most a thousand times as much before the next is asked for. */
const SLICE_BYTES = 4096;
const ADLER_BYTES = 4;
/** Header, an empty block, and the sum. */
const LEAST_BYTES = 8;

export async function deflated(bytes: Uint8Array): Promise<Uint8Array> {
  const parts = slices(bytes, 1 << 16).pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(parts).arrayBuffer());
}

/**
 * What one whole stream stands for, which must be `size` bytes; null for anything else.
 *
 * However much the stream would become, little more than `size` bytes are ever made.
 */
export async function inflated(bytes: Uint8Array, size: number): Promise<Uint8Array | null> {
  if (bytes.length < LEAST_BYTES) return null;
  const reader = slices(bytes, SLICE_BYTES).pipeThrough(new DecompressionStream("deflate")).getReader();
  const found = new Uint8Array(size);
  let at = 0;
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      if (at + part.value.length > size) {
        await reader.cancel();
        return null;
      }
      found.set(part.value, at);
      at += part.value.length;
    }
  } catch {
    return null; // no such stream, or one that is cut off
  }
  // Some runtimes pass over what follows a stream: its own sum must be the last that there is.
  const end = bytes.subarray(-ADLER_BYTES);
  const sum = new DataView(end.buffer, end.byteOffset, ADLER_BYTES).getUint32(0);
  return at === size && sum === adler32(found) ? found : null;
}

function slices(bytes: Uint8Array, size: number): ReadableStream<BufferSource> {
  let at = 0;
  return new ReadableStream<BufferSource>({
    pull(controller) {
      if (at < bytes.length) controller.enqueue(bytes.slice(at, at + size));
      else controller.close();
      at += size;
    },
  });
}

function adler32(bytes: Uint8Array): number {
  let [low, high] = [1, 0];
  for (let at = 0; at < bytes.length; ) {
    // So many additions stay below 2^32.
    for (const end = Math.min(at + 5552, bytes.length); at < end; at++) {
      low += bytes[at]!;
      high += low;
    }
    low %= 65521;
    high %= 65521;
  }
  return high * 65536 + low;
}
