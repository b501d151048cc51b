/** IndexedDB with promises: reads, and writes that are whole or not at all. */

import { ProvisionError, UnavailableError } from "../errors.ts";
import { STORE } from "../texts.ts";

const VERSION = 1;

export const TABLES = ["facts", "blobs", "parts", "examples"] as const;
export type Table = (typeof TABLES)[number];

/** What one transaction does, in this order. */
export type Write =
  | { readonly table: Table; readonly put: unknown; readonly key: IDBValidKey }
  | { readonly table: Table; readonly delete: IDBValidKey | IDBKeyRange }
  | { readonly table: Table; readonly clear: true };

export class Database {
  readonly #db: IDBDatabase;
  #lost = false;

  private constructor(db: IDBDatabase, lost: () => void) {
    this.#db = db;
    db.onclose = () => {
      this.#lost = true;
      lost();
    };
    // Another page of this origin deletes everything.
    db.onversionchange = () => {
      this.#lost = true;
      db.close();
      lost();
    };
  }

  /** `lost` is called when the browser deletes the database while it is open. */
  static async open(name: string, lost: () => void): Promise<Database> {
    return new Database(await opened(name), lost);
  }

  get lost(): boolean {
    return this.#lost;
  }

  async get(table: Table, key: IDBValidKey): Promise<unknown> {
    return this.#read(table, (store) => store.get(key));
  }

  async getAll(table: Table, range?: IDBKeyRange): Promise<unknown[]> {
    return this.#read(table, (store) => store.getAll(range));
  }

  async keys(table: Table, range?: IDBKeyRange): Promise<IDBValidKey[]> {
    return this.#read(table, (store) => store.getAllKeys(range));
  }

  /**
   * All writes or none. `strict`: they are on the disk when the promise resolves; `relaxed`: with
   * the system, which loses them only when the power fails.
   */
  async write(writes: readonly Write[], durability: "strict" | "relaxed" = "strict"): Promise<void> {
    const tables = [...new Set(writes.map(({ table }) => table))];
    if (!tables.length) return;
    await this.#transact(tables, durability, (transaction) => {
      for (const write of writes) request(transaction.objectStore(write.table), write);
    });
  }

  /** Keeps a record under the next number of a table, which is returned. */
  async add(table: Table, record: unknown): Promise<number> {
    const asked = await this.#transact([table], "strict", (transaction) => transaction.objectStore(table).add(record));
    return asked.result as number;
  }

  close(): void {
    this.#db.close();
  }

  async #read<T>(table: Table, ask: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
    this.#check();
    try {
      return await answered(ask(this.#db.transaction(table, "readonly").objectStore(table)));
    } catch (error) {
      throw this.#named(error);
    }
  }

  async #transact<T>(
    tables: readonly Table[],
    durability: "strict" | "relaxed",
    work: (transaction: IDBTransaction) => T,
  ): Promise<T> {
    this.#check();
    try {
      const transaction = this.#db.transaction(tables, "readwrite", { durability });
      const done = work(transaction);
      await new Promise<void>((resolve, reject) => {
        transaction.oncomplete = () => resolve();
        transaction.onabort = () => reject(transaction.error ?? new DOMException("aborted", "AbortError"));
      });
      return done;
    } catch (error) {
      throw this.#named(error);
    }
  }

  #check(): void {
    if (this.#lost) throw gone();
  }

  #named(error: unknown): Error {
    if (this.#lost) return gone();
    const name = error instanceof DOMException ? error.name : "";
    if (name === "QuotaExceededError") {
      return new UnavailableError(STORE.full);
    }
    return new UnavailableError(STORE.failing(String(error)));
  }
}

/** Deletes a database; other pages that have it open lose it. */
export async function deleteDatabase(name: string): Promise<void> {
  await answered(indexedDB.deleteDatabase(name));
}

function gone(): ProvisionError {
  return new ProvisionError(STORE.gone);
}

function opened(name: string): Promise<IDBDatabase> {
  let asked: IDBOpenDBRequest;
  try {
    asked = indexedDB.open(name, VERSION);
  } catch (error) {
    return Promise.reject(unusable(error));
  }
  asked.onupgradeneeded = () => {
    for (const table of TABLES) asked.result.createObjectStore(table, { autoIncrement: table === "examples" });
  };
  return answered(asked).catch((error: unknown) => Promise.reject(unusable(error)));
}

function unusable(error: unknown): UnavailableError {
  return new UnavailableError(STORE.unusable(String(error)));
}

function answered<T>(asked: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
}

function request(store: IDBObjectStore, write: Write): void {
  if ("put" in write) store.put(write.put, write.key);
  else if ("delete" in write) store.delete(write.delete);
  else store.clear();
}
