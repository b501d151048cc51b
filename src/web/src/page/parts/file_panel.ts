/** A file of examples. */

import type { BundleFacts } from "../../device/page_messages.ts";
import { sizeOf } from "../../tensors/tensors.ts";
import { shapeText } from "../../intake/examples.ts";
import { type FileExamples, type FilesRead, readFiles } from "../../intake/files.ts";
import type { IntakeCounters } from "../../intake/windows.ts";
import type { App } from "../app.ts";
import { sentence } from "../format.ts";
import { h, newId, setText, show } from "../dom.ts";
import { DATA, FILES, SENSORS } from "../../texts.ts";
import { type Panel, tellInputError } from "./panel.ts";

export function filePanel(app: App, bundle: BundleFacts): Panel {
  const id = newId();
  const said = h("p", { role: "status" });
  const hint = h("p", { class: "detail", role: "status", hidden: true });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const field = h("input", { type: "file", id, multiple: true, accept: ".csv,.tsv,.txt,.json,.zip,.npz", class: "visually-hidden", change: () => void read() });

  async function read(): Promise<void> {
    const files = [...(field.files ?? [])];
    field.value = "";
    if (files.length === 0) return;
    show(problem, false);
    show(hint, false);
    setText(said, FILES.reading);
    try {
      await take(await readFiles(files, bundle));
    } catch (error) {
      if (error instanceof Error && error.name === "InputError") complain(error.message);
      else tellInputError(app, error);
    }
  }

  function complain(text: string): void {
    setText(said, "");
    setText(problem, sentence(text));
    show(problem, true);
  }

  async function take({ found, refused }: FilesRead): Promise<void> {
    const texts: string[] = [];
    for (const { where, examples } of found) {
      const kept = await Promise.all(examples.parts.map((part) => app.device.add(part.examples, where.replace(/^'|'$/g, ""))));
      if (!kept.every(Boolean)) continue; // the device has told why
      const text = summary(examples);
      texts.push(found.length > 1 ? FILES.each(where, text) : text);
    }
    setText(said, texts.join(" "));
    const told = found.flatMap(({ examples }) => examples.hints);
    setText(hint, [...(texts.length > 0 ? told : []), ...refused.map(FILES.leftOut)].join(" "));
    show(hint, hint.textContent !== "");
  }

  return {
    element: h("div", { class: "stack" }, h("p", {}, FILES.lead), h("ul", { class: "plain-list" }, ...layouts(bundle).map((text) => h("li", {}, text))),
      field, h("label", { for: id, class: "button primary" }, FILES.choose), said, hint, problem),
    leave: () => undefined,
  };
}

function layouts({ preprocessing, targets }: BundleFacts): string[] {
  const { channels, window, input_shape: shape } = preprocessing;
  const size = sizeOf(shape);
  const examples = targets.length > 0 ? FILES.csvTargets(size, targets.join(", ")) : FILES.csvExamples(size);
  const stream = window && channels.length > 0 && targets.length === 0;
  const tables = stream ? [FILES.csvStream(channels.join(", ")), FILES.zip] : [examples];
  return [...tables, FILES.npz(shapeText(shape))];
}

function summary({ parts, lost, doubted }: FileExamples): string {
  const count = parts.reduce((sum, part) => sum + part.examples.x.shape[0]!, 0);
  const unlabelled = parts.reduce((sum, part) => sum + part.unlabelled, 0);
  const texts = [DATA.added(count)];
  if (unlabelled > 0) texts.push(FILES.unlabelled(unlabelled));
  const counters = lost === null ? "" : lostText(lost);
  if (counters !== "") texts.push(FILES.lost(counters));
  if (doubted !== null) texts.push(FILES.doubt(doubted.toPrecision(3)));
  return texts.join(" ");
}

function lostText(lost: IntakeCounters): string {
  const names = Object.keys(SENSORS.counters) as (keyof IntakeCounters)[];
  return names.filter((name) => lost[name] > 0).map((name) => `${lost[name]} ${SENSORS.counters[name]}`).join(", ");
}
