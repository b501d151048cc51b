/** Partial blobs in memory; what a device that was killed finds again. */

import type { PartialBlob, PartialBlobs } from "../../src/wire/partial_blobs.ts";

export class MemoryBlobs implements PartialBlobs {
  readonly kept = new Map<string, Map<number, Uint8Array>>();

  async open(key: string): Promise<PartialBlob> {
    const chunks = this.kept.get(key) ?? new Map<number, Uint8Array>();
    this.kept.set(key, chunks);
    return {
      present: [...chunks.keys()],
      write: async (index, data) => void chunks.set(index, data),
      read: async () => {
        const ordered = [...chunks].sort(([a], [b]) => a - b).map(([, data]) => data);
        return new Uint8Array(await new Blob(ordered as BlobPart[]).arrayBuffer());
      },
      delete: async () => chunks.clear(),
    };
  }

  async keepOnly(keys: readonly string[]): Promise<void> {
    for (const key of this.kept.keys()) if (!keys.includes(key)) this.kept.delete(key);
  }
}
