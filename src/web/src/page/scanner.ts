/** Reads a QR code with the camera, where the browser can. */

import { button, h } from "./dom.ts";
import { JOIN } from "../texts.ts";

interface Detector {
  detect(source: CanvasImageSource): Promise<readonly { readonly rawValue: string }[]>;
}

interface WithDetector {
  readonly BarcodeDetector?: {
    new (options: { readonly formats: readonly string[] }): Detector;
    getSupportedFormats(): Promise<readonly string[]>;
  };
}

const EVERY_MS = 150;
const INVITATION = /protofleet:[\w-]+/;

/** The invitation in a text, which may be an address that ends with it; null if there is none. */
export function invitationIn(text: string): string | null {
  return INVITATION.exec(text)?.[0] ?? null;
}

export async function canScan(): Promise<boolean> {
  const { BarcodeDetector } = globalThis as WithDetector;
  if (BarcodeDetector === undefined || navigator.mediaDevices === undefined) return false;
  const formats = await BarcodeDetector.getSupportedFormats().catch((): string[] => []);
  return formats.includes("qr_code");
}

/** Shows the camera until an invitation is seen; null if the owner gives up. Throws without a camera. */
export async function scan(): Promise<string | null> {
  const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  const video = h("video", { playsinline: true, muted: true, "aria-label": JOIN.scanHint });
  const hint = h("p", { role: "status" }, JOIN.scanHint);
  const dialog = h("dialog", { class: "scanner", "aria-label": JOIN.scanTitle }, h("h2", {}, JOIN.scanTitle), video, hint);
  dialog.append(button(JOIN.cancel, "plain", () => dialog.close()));
  document.body.append(dialog);
  try {
    video.srcObject = stream;
    dialog.showModal();
    await video.play();
    return await firstInvitation(dialog, video, hint);
  } finally {
    stream.getTracks().forEach((track) => track.stop());
    dialog.remove();
  }
}

async function firstInvitation(dialog: HTMLDialogElement, video: HTMLVideoElement, hint: HTMLElement): Promise<string | null> {
  const detector = new (globalThis as WithDetector).BarcodeDetector!({ formats: ["qr_code"] });
  while (dialog.open) {
    const codes = await detector.detect(video).catch(() => []);
    const found = codes.map((code) => invitationIn(code.rawValue)).find((text) => text !== null);
    if (found) return found;
    if (codes.length > 0) hint.textContent = JOIN.scanOther;
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
  return null;
}
