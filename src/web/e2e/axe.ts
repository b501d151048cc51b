/** axe-core on a page of the tests: what of it a person with a screen reader, or with weak eyes, cannot use. */

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

import type { Page } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf-8");

interface Violation {
  readonly id: string;
  readonly help: string;
  readonly nodes: readonly { readonly target: readonly string[]; readonly failureSummary: string }[];
}

/** A line for each rule that the page breaks as it is now. */
export async function violations(page: Page): Promise<string[]> {
  // By the debugger: the page's security policy lets no other script in.
  if (!(await page.evaluate("'axe' in globalThis"))) await page.evaluate(AXE);
  const found = (await page.evaluate("axe.run(document, { resultTypes: ['violations'] })")) as { violations: Violation[] };
  return found.violations.map(({ id, help, nodes }) => {
    const places = nodes.map((node) => `${node.target.join(" ")} (${node.failureSummary.replaceAll("\n", " ")})`);
    return `${id}: ${help}: ${places.join("; ")}`;
  });
}

/** The same in light and dark colours, each line behind the name of its scheme. */
export async function violationsInBothColours(page: Page): Promise<string[]> {
  const found: string[] = [];
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    found.push(...(await violations(page)).map((line) => `${colorScheme}: ${line}`));
  }
  return found;
}
