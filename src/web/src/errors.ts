/** What a device refuses, and why it cannot go on; each with the sentence that a person reads. */

/** Something from outside broke a rule; `rule` is its name in docs/protocol.md or docs/bundle.md. */
export class RefusedError extends Error {
  constructor(
    readonly rule: string,
    message: string,
  ) {
    super(message);
    this.name = "RefusedError";
  }
}

/** What a person or a file gave is wrong, and the message says what to do. */
export class InputError extends Error {
  override name = "InputError";
}

/** Training ended in numbers that are not finite. */
export class DivergedError extends Error {
  override name = "DivergedError";
}

/** The device's own state is damaged or gone. */
export class ProvisionError extends Error {
  override name = "ProvisionError";
}

/** The browser, the network or the disk does not do what is needed now. */
export class UnavailableError extends Error {
  override name = "UnavailableError";
}
