/** The page: what a person sees of this phone's part in a federation. */

declare const WORKER_URL: string;

const heading = document.createElement("h1");
heading.textContent = "Protofleet";
document.body.append(heading);
if ("serviceWorker" in navigator) void navigator.serviceWorker.register("/service_worker.js");
export const worker = new Worker(WORKER_URL, { type: "module" });
