/** Where chunks are kept until their blob is complete, so that a device that was killed goes on with them. */

/** One blob on its way here, as its chunks are kept. */
export interface PartialBlob {
  /** Indices of the chunks that were kept when it was opened. */
  readonly present: Iterable<number>;
  /** Keeps a chunk; `data` owns its memory. */
  write(index: number, data: Uint8Array): Promise<void>;
  /** The chunks that are kept, one behind the other. */
  read(): Promise<Uint8Array>;
  /** Deletes all chunks; others may be written again. */
  delete(): Promise<void>;
}

/** Where partial blobs are kept. */
export interface PartialBlobs {
  /** What is kept under `key`, of `count` chunks. */
  open(key: string, count: number): Promise<PartialBlob>;
  /** Deletes what is kept under any other key. */
  keepOnly(keys: readonly string[]): Promise<void>;
}
