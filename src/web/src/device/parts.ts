/** Chunks of unfinished downloads, in the phone's store. */

import type { PartialBlob, PartialBlobs } from "../wire/partial_blobs.ts";
import type { Database } from "./database.ts";

/** Chunks lie under `[key, count, index]`: a blob cut otherwise is another one. */
export class StoredParts implements PartialBlobs {
  readonly #database: Database;

  constructor(database: Database) {
    this.#database = database;
  }

  async open(key: string, count: number): Promise<PartialBlob> {
    const database = this.#database;
    const range = IDBKeyRange.bound([key, count], [key, count, []]);
    const found = (await database.keys("parts", range)) as [string, number, number][];
    return {
      present: found.map(([, , index]) => index),
      write: (index, put) => database.write([{ table: "parts", put, key: [key, count, index] }], "relaxed"),
      read: async () => joined((await database.getAll("parts", range)) as Uint8Array[]),
      delete: () => database.write([{ table: "parts", delete: range }], "relaxed"),
    };
  }

  async keepOnly(keys: readonly string[]): Promise<void> {
    const all = (await this.#database.keys("parts")) as [string, number, number][];
    const gone = all.filter(([key]) => !keys.includes(key));
    await this.#database.write(gone.map((key) => ({ table: "parts", delete: key })), "relaxed");
  }
}

function joined(parts: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let offset = 0;
  for (const part of parts) {
    all.set(part, offset);
    offset += part.length;
  }
  return all;
}
