/** What a page hides beside a narrow screen. */

import type { Page } from "playwright-core";

/** Names of the tables that have to be moved sideways to be read; a confusion matrix may. */
export async function cutOff(page: Page): Promise<(string | null)[]> {
  return page.locator(".scroll:not(:has(.confusion))").evaluateAll((regions) =>
    regions.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.getAttribute("aria-label") ?? one.textContent));
}
