/** Icons as lines on 24 x 24 points. */

import { s } from "./dom.ts";

const PATHS = {
  train: "M3 13h4l3-8 4 14 3-8h4",
  data: "M12 3 3 7.5 12 12l9-4.5L12 3ZM3 12l9 4.5 9-4.5M3 16.5 12 21l9-4.5",
  sent: "M12 15V4m0 0L8 8m4-4 4 4M4 14v5a1 1 0 0 0 1 1h14a1 1 0 0 0 1-1v-5",
  settings: "M4 7h9m4 0h3M4 17h3m4 0h9M15 5v4M9 15v4",
  camera: "M4 8V5a1 1 0 0 1 1-1h3m8 0h3a1 1 0 0 1 1 1v3m0 8v3a1 1 0 0 1-1 1h-3m-8 0H5a1 1 0 0 1-1-1v-3M8 8h3v3H8zm5 0h3v3h-3zM8 13h3v3H8zm6 1h1v1h-1z",
  warning: "M12 4 2.8 20h18.4L12 4Zm0 6v5m0 2.5v.5",
  down: "M12 4v12m0 0-4-4m4 4 4-4M5 20h14",
  key: "M14 10a4 4 0 1 1-2.6-3.7M12 10h9m-3 0v3m-3-3v2",
  phone: "M8 3h8a1 1 0 0 1 1 1v16a1 1 0 0 1-1 1H8a1 1 0 0 1-1-1V4a1 1 0 0 1 1-1Zm3 15h2",
} as const;

export type IconName = keyof typeof PATHS;

export function icon(name: IconName): SVGElement {
  return s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, s("path", { d: PATHS[name] }));
}

/** The page's own sign: a coordinator and the phones around it. */
export function logo(): SVGElement {
  return s("svg", { class: "logo", viewBox: "0 0 24 24", "aria-hidden": "true" },
    s("path", { d: "M12 12V5.6M12 12 6.5 15.2M12 12l5.5 3.2" }),
    ...[[12, 12, 2.6], [12, 5.6, 1.7], [6.5, 15.2, 1.7], [17.5, 15.2, 1.7]].map(([cx, cy, r]) =>
      s("circle", { cx: cx!, cy: cy!, r: r! })));
}
