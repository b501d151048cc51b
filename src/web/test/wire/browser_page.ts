/** What the wire's cryptography makes of known keys and of wrong data, in whichever engine runs this. */

import { utf8 } from "../../src/bytes.ts";
import { RefusedError } from "../../src/errors.ts";
import { fromHex, toHex } from "../../src/hash.ts";
import { ChunkCipher, pack } from "../../src/wire/chunks.ts";
import { newKeys, publicBytes, verifyEd25519 } from "../../src/wire/ciphers.ts";
import { invitationKeys, parseInvitation, writeRequest } from "../../src/wire/enrolment.ts";
import { DEVICE_GRANT, readStatement, sign } from "../../src/wire/identity.ts";
import { Session, deriveKeys, newHandshake } from "../../src/wire/session.ts";
import { bytesOf, keysOf, publicHex, signStatement } from "./keys.ts";

export type Facts = Readonly<Record<string, string | boolean | readonly string[]>>;

const TOPIC = "fl/v2/lab/up/pi-7/s";
const SMALL_ORDER = [
  "00".repeat(32), `01${"00".repeat(31)}`, "", "ab",
  "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
  "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
  `ec${"ff".repeat(30)}7f`, `ed${"ff".repeat(30)}7f`, `ee${"ff".repeat(30)}7f`,
];
const INVITATION =
  "protofleet:AQMAAQIDBAUGBwgJCgsMDQ4PVkdap1RjR0wChd9dvyvKt83Nzc3Nzc3Nzc3Nzc3Nzc3Nz" +
  "c3Nzc3Nzc3Nzc3Nzc3NAAAAAO5rKABtcXR0czovL2Jyb2tlci5leGFtcGxlOjg4ODMKbGFiCnBpLTd3Cveg";

const ruleOf = async (attempt: Promise<unknown>): Promise<string> => {
  try {
    await attempt;
    return "accepted";
  } catch (error) {
    return error instanceof RefusedError ? error.rule : String(error);
  }
};

async function sessionFacts(): Promise<Facts> {
  const [ours, theirs] = [await keysOf("X25519", bytesOf(2)), await keysOf("X25519", bytesOf(1))];
  const terms = {
    coordinatorNonce: bytesOf(null, 16), deviceNonce: bytesOf(null).subarray(16), runId: "r", bundle: "b", deviceId: "d",
  };
  const { up, down } = await deriveKeys(ours.privateKey, await publicBytes(theirs.publicKey), terms);
  const session = await Session.create(up, down);
  const sealed = await session.seal(TOPIC, utf8("abc"));
  const other = await Session.create(down, up);
  const { privateKey } = await newHandshake();
  return {
    keys: [toHex(up), toHex(down)],
    sealed: toHex(sealed),
    elsewhere: await ruleOf(other.open("x", sealed)),
    short: await ruleOf(other.open(TOPIC, sealed.subarray(0, 25))),
    opened: toHex(await other.open(TOPIC, sealed)),
    again: await ruleOf(other.open(TOPIC, sealed)),
    shares: await Promise.all(SMALL_ORDER.map((share) => ruleOf(deriveKeys(privateKey, fromHex(share), terms)))),
  };
}

async function signatureFacts(): Promise<Facts> {
  const federation = await keysOf("Ed25519", bytesOf(null));
  const signer = await publicHex(federation);
  const fields = { federation: "lab", device_id: "pi-7", key: "ab".repeat(32), serial: 3, until: 4_000_000_000 };
  const statement = await signStatement(federation.privateKey, DEVICE_GRANT, fields);
  const read = (by: string, text = statement): Promise<string> =>
    ruleOf(readStatement(text, DEVICE_GRANT, { signer: by, federation: "lab", now: 0 }));
  const drawn = await newKeys("Ed25519");
  const signature = await sign(drawn.privateKey, "presence", utf8("abc"));
  const signed = utf8("protofleet/2 presence\0abc");
  return {
    statement,
    readers: [await read(signer), await read(`${signer.slice(0, -2)}00`), await read(""), await read("ff".repeat(32))],
    altered: await read(signer, statement.replace("DTO", "DTP")),
    ownSignature: await verifyEd25519(await publicBytes(drawn.publicKey), signature, signed),
    shortSignature: await verifyEd25519(await publicBytes(drawn.publicKey), signature.subarray(1), signed),
    extractable: drawn.privateKey.extractable,
    exported: await crypto.subtle.exportKey("pkcs8", drawn.privateKey).then(() => "yes", () => "no"),
  };
}

async function enrolmentFacts(): Promise<Facts> {
  const keys = await invitationKeys(await parseInvitation(INVITATION));
  const device = await keysOf("Ed25519", bytesOf(7));
  const request = {
    type: "enrolment-request", step: "grant", device_id: "pi-7", key: await publicHex(device), share: "ab".repeat(32),
    nonce: "0f".repeat(16), time: 1_800_000_000,
  } as const;
  const cipher = await ChunkCipher.create("11".repeat(32), "0f".repeat(16));
  const chunk = { transferId: "0f".repeat(16), index: 7, last: true, data: utf8("abc"), sealed: false };
  return {
    password: keys.password,
    request: toHex(await writeRequest(request, device.privateKey, keys.proof, TOPIC)),
    chunk: toHex(pack(await cipher.seal(chunk))),
    foreignChunk: await ruleOf(cipher.open({ ...(await cipher.seal(chunk)), index: 8 })),
  };
}

export async function facts(): Promise<Facts> {
  return { ...(await sessionFacts()), ...(await signatureFacts()), ...(await enrolmentFacts()) };
}

if (typeof document !== "undefined") {
  Object.assign(globalThis, { facts });
  document.title = "ready";
}
