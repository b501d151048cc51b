/** The page on the home screen, and newer versions of it. */

interface InstallPrompt extends Event {
  prompt(): Promise<unknown>;
}

export interface Installation {
  /** Asks the browser to install; null where it offers nothing. */
  readonly install: (() => void) | null;
  readonly installed: boolean;
  /** Takes the newer version that waits; null if none does. */
  readonly update: (() => void) | null;
}

/** Long enough for a first start to keep what it loads; later starts do not wait. */
const CONTROLLED_WITHIN_MS = 4000;

/** Calls back at once and after each change. */
export function watchInstallation(changed: (state: Installation) => void): void {
  let prompt: InstallPrompt | null = null;
  let waiting: ServiceWorker | null = null;
  const display = window.matchMedia("(display-mode: standalone)");
  const tell = () => changed({
    install: prompt === null ? null : () => void prompt?.prompt(),
    installed: display.matches || (navigator as { standalone?: boolean }).standalone === true,
    update: waiting === null ? null : () => useNow(waiting!),
  });
  window.addEventListener("beforeinstallprompt", (event) => {
    event.preventDefault();
    prompt = event as InstallPrompt;
    tell();
  });
  window.addEventListener("appinstalled", () => {
    prompt = null;
    tell();
  });
  display.addEventListener("change", tell);
  tell();
  void navigator.serviceWorker?.ready.then((registration) => {
    const look = () => {
      waiting = registration.waiting;
      tell();
    };
    registration.addEventListener("updatefound", () => registration.installing?.addEventListener("statechange", look));
    look();
  });
}

function useNow(waiting: ServiceWorker): void {
  navigator.serviceWorker.addEventListener("controllerchange", () => window.location.reload(), { once: true });
  waiting.postMessage("use-now");
}

/** Registers the service worker; resolves when what is loaded from now on is kept, or soon in any case. */
export async function keepOffline(): Promise<void> {
  if (!("serviceWorker" in navigator)) return;
  try {
    await navigator.serviceWorker.register("/service_worker.js", { scope: "/" });
  } catch {
    return; // without it the page works, but not without a network
  }
  if (navigator.serviceWorker.controller !== null) return;
  await new Promise<void>((resolve) => {
    navigator.serviceWorker.addEventListener("controllerchange", () => resolve(), { once: true });
    setTimeout(resolve, CONTROLLED_WITHIN_MS);
  });
}
