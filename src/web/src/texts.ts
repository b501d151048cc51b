/**
 * Every English sentence that the owner of the phone may read: of the page, of the device, of what is read from files.
 * Only what a rule of docs/bundle.md or docs/protocol.md refuses is worded where the rule is checked.
 */

import type { Phase } from "./device/page_messages.ts";

export const PRODUCT = "Protofleet";

export const NAVIGATION = {
  label: "Sections",
  train: "Training",
  data: "Your data",
  sent: "Sent",
  settings: "Settings",
} as const;

export const SKIP_LINK = "Skip to the content";

/** Short state, for the header. */
export const STATES: Readonly<Record<Phase, string>> = {
  "opening": "Opening",
  "needs-invitation": "Not joined",
  "enrolling": "Joining",
  "fetching-bundle": "Loading model",
  "needs-examples": "No examples",
  "connecting": "Connecting",
  "waiting": "Waiting",
  "calibrate": "Trying",
  "receive": "Receiving",
  "train": "Training",
  "send": "Sending",
  "paused": "Paused",
  "finished": "Finished",
  "left": "Left",
  "other-tab": "Other tab",
  "failed": "Stopped",
};

/** What goes on, and what the owner of the phone may do. */
export const PHASES: Readonly<Record<Phase, { readonly title: string; readonly text: string }>> = {
  "opening": { title: "Opening what this phone has kept", text: "" },
  "needs-invitation": { title: "Join a federation", text: "" },
  "enrolling": {
    title: "Joining",
    text: "This phone has made its key and asks to be let in. Whoever invited you must have their computer running.",
  },
  "fetching-bundle": {
    title: "Loading the model",
    text: "It is taken only if it is signed by whoever runs the federation.",
  },
  "needs-examples": {
    title: "Your phone has nothing to learn from yet",
    text: "Record, draw or load some labelled examples. They stay on this phone.",
  },
  "connecting": { title: "Looking for the federation", text: "It is tried again and again, at growing intervals." },
  "waiting": {
    title: "Ready, and waiting for the next round",
    text: "Rounds begin when enough phones are there. Leave this page open.",
  },
  "calibrate": {
    title: "Finding out how fast to learn",
    text: "A few short trainings on your examples, once, before the first round. Only how well each did is told; no model leaves this phone.",
  },
  "receive": { title: "Receiving the shared model", text: "" },
  "train": { title: "Training on your examples", text: "Keep this page open and in front: phones stop pages that nobody sees." },
  "send": { title: "Sending what was learned", text: "Your examples are not part of it." },
  "paused": { title: "Paused", text: "No training until you go on. Your model still works on this phone." },
  "finished": {
    title: "The federation has finished",
    text: "Thank you. The model that was learned stays on this phone and works without a network.",
  },
  "left": {
    title: "You have left the federation",
    text: "Nothing is trained or sent any more. Your model stays on this phone until you delete it. You may come back as long as the federation runs.",
  },
  "other-tab": {
    title: "Protofleet is open in another tab",
    text: "Two tabs must not train at once. When the other one is closed, this one goes on by itself.",
  },
  "failed": { title: "This phone cannot go on", text: "" },
};

export const BASELINE = {
  title: "This browser cannot take part yet",
  intro: "Protofleet keeps a key and trains inside this page. For that the browser lacks:",
  insecureTitle: "This page needs a secure address",
  insecureIntro: "It was opened over plain http. There browsers give no page keys, motion sensors or a start without a network, so nobody can take part here. What to do:",
  insecureSteps: [
    "Open the https address of the hub: whoever runs it starts “protofleet hub” with --https.",
    "If the browser then warns of the certificate, install the federation's authority on this phone first. Compare its fingerprint with the one that the hub prints.",
    "Or over a cable, without https: adb reverse on the computer, and http://localhost on the phone.",
  ],
  authority: "The federation's authority",
  ed25519: "Ed25519 signatures, with which bundles and members are checked. Chrome has them since 137, Safari since 17, Firefox since 129.",
  x25519: "X25519 key agreement, with which messages are sealed. Chrome has it since 133, Safari since 17, Firefox since 130.",
  simd: "WebAssembly with SIMD, in which the model runs. Browsers have it since 2021; iPhones since iOS 16.4.",
  worker: "Module workers, in which training runs beside the page. Chrome has them since 80, Safari since 15, Firefox since 114.",
  indexedDb: "A store that it may write to. Private windows often have none: open the page in an ordinary one.",
  locks: "Web Locks, which keep two tabs from training at once. Chrome has them since 69, Safari since 15.4.",
  streams: "Decompression of what arrives. Chrome has it since 103, Safari since 16.4, Firefox since 113.",
  remedy: "Update the browser, or take Chrome, Firefox or Samsung Internet of mid 2025 or later, or Safari on iOS 18.4 or later.",
  workerFailed: "The part of this page that trains could not be started. Load the page again; if that does not help, update the browser.",
} as const;

export const JOIN = {
  lead: "Learn together with other phones. Your data stay on yours.",
  how: [
    ["A model comes to you", "signed by whoever runs the federation, and checked by this phone."],
    ["It trains here", "on examples that you record, draw or load."],
    ["Only what it learned leaves", "as numbers of the model, sealed for the federation. You see each of them listed."],
  ],
  trust: "An invitation decides whom this phone trusts. Take one only from somebody whom you know.",
  scan: "Scan the code",
  scanTitle: "Scan the invitation",
  scanHint: "Hold the code into the picture.",
  scanOther: "That code is no invitation to a federation. It should begin with “protofleet:”.",
  scanUnavailable: "This browser reads no codes. Use the phone's camera app: it opens this page with the invitation in it. Or paste the text below.",
  cameraRefused: "The camera cannot be used. Allow it for this page, or paste the invitation.",
  cancel: "Cancel",
  paste: "Or paste the invitation",
  placeholder: "protofleet:AQPK…",
  join: "Join",
  carried: "The address that you opened carries an invitation.",
  carriedJoin: "Join this federation",
  open: (name: string) => `The federation “${name}” of this address works without keys: it asks for no invitation, and whoever is on the network can read and change what is sent. Good for a trial, not for data that matter.`,
  openJoin: "Join without keys",
  openName: "This phone's name in the federation (may stay empty)",
  broker: "Another broker",
  brokerLabel: "Address of the broker",
  brokerHint: "Only if you were given one: this page then speaks to the broker itself, not through the hub.",
  brokerPlaceholder: "wss://broker.example:9001",
  brokerWrong: "The address of a broker begins with wss:// or ws://.",
  none: "Paste an invitation first. It begins with “protofleet:”.",
} as const;

export const IN_USE = {
  personal: "On this phone your own model answers:",
  bundle: "On this phone the model that you started with answers:",
  chosen: "you chose so in the settings.",
  untested: "too few examples are kept back to compare yours with it. About five of a class are needed.",
  oneClass: "all your examples are of one class, so yours cannot be compared with it.",
  compared: (now: string, before: string, examples: number) =>
    `yours has ${now}, the one that you started with ${before}, on ${examples} of your examples that neither has seen.`,
  tooLittle: "That is too little to show that yours helps.",
  error: (size: number) => `an error of ${size.toPrecision(4)}`,
} as const;

export const TRAIN = {
  round: (round: number, rounds: number) => (rounds > 0 ? `Round ${round} of ${rounds}` : `Round ${round}`),
  noRound: "No round yet",
  noRoundYet: "No round with the new model yet",
  byPolicy: "It goes on by itself. When it may train, you choose in the settings.",
  settings: "Settings",
  progress: "Progress of the training",
  pause: "Pause",
  resume: "Go on",
  comeBack: "Come back",
  again: "Try again",
  addExamples: "Add examples",
  keepOpen: "Screen stays on",
  mayTurnOff: "Screen may turn off",
  yours: "On your own examples",
  yoursEmpty: "After the first round you see here how well the model does on examples of yours that it was not trained on, before and after.",
  yoursNoTest: "There are too few examples to keep some back for a test. With about ten of each class this chart fills.",
  before: "before training",
  after: "after training",
  sinceStart: (start: number, now: number) =>
    `${start} % before the federation${now === start ? ", no change" : `: ${now > start ? "+" : "−"}${Math.abs(now - start)} points`}`,
  change: (points: number) =>
    points === 0 ? "no change since round 1" : `${points > 0 ? "+" : "−"}${Math.abs(points)} points since round 1`,
  chartLabel: (rounds: number) => `Accuracy on your own test examples over ${rounds} ${rounds === 1 ? "round" : "rounds"}`,
  asTable: "As a table",
  table: { round: "Round", before: "Before", after: "After", loss: "Loss", seconds: "Seconds" },
  figures: "Figures",
  received: "Received",
  sent: "Sent",
  step: "Per step",
  lastRound: "Last round took",
  battery: "Battery",
  network: "Network",
  level: (percent: number) => `${percent} %`,
  charging: "charging",
  discharging: "on battery",
  untold: "not told",
  offline: "offline",
  online: "online",
  metered: "mobile data",
  unmetered: "Wi-Fi",
  learns: "What it learns",
  learnsEmpty: "Shown as soon as the model is here.",
  classes: "To tell apart",
  targets: "To estimate",
  size: "Model",
  sizeOf: (parameters: string, bytes: string) => `${parameters} numbers, ${bytes}`,
  strategy: "Method",
  federation: "Federation",
  device: "This phone",
  signer: "Signed by",
  digest: "Bundle",
  finishedBefore:
    "It had finished before this phone took part. Nothing is trained any more unless it begins again: ask whoever runs it.",
  moved: "The federation has changed its model",
  movedTensors: "What became of each part",
} as const;

export const DATA = {
  title: "Your data",
  lead: "Examples stay on this phone. They are never sent.",
  noBundle: "What examples are needed is known once the model has been loaded.",
  counts: "What this phone has",
  empty: "No examples yet.",
  emptyHint: (few: number) => `About ${few} of each class are a good start; the last of each test the model and are not trained on.`,
  total: (count: number) => `${count} ${count === 1 ? "example" : "examples"}`,
  perClass: (name: string, count: number) => `${name}: ${count}`,
  ways: "Add examples",
  sensors: "Sensors",
  draw: "Draw",
  file: "File",
  clear: "Delete all examples",
  clearTitle: "Delete all examples?",
  clearText: "They are only on this phone and cannot be brought back. The model stays.",
  clearYes: "Delete them",
  added: (count: number) => `${count} ${count === 1 ? "example" : "examples"} added.`,
} as const;

export const SENSORS = {
  lead: "Say what you do, start, do it with the phone where it usually is, then stop.",
  choose: "What do you do?",
  start: "Start",
  stop: "Stop",
  recording: (name: string) => `Recording “${name}”`,
  seconds: (seconds: number) => `${seconds} s`,
  windows: (count: number) => `${count} ${count === 1 ? "example" : "examples"} so far`,
  first: (seconds: string) => `An example is ${seconds} s long. The first comes after a little more.`,
  trimmed: (seconds: number) =>
    `The first and the last ${seconds} seconds are left out, while you put the phone away or take it out.`,
  none: "Too short: no example was complete. Record a little longer.",
  assumed: "What is assumed of the sensors",
  unitsSaid: "The units are what the bundle says.",
  unknownUnit: (unit: string) => `the bundle's channels are in ${unit}, which this phone's sensors have no reading in`,
  unitsKnown: "The bundle names channels without units; these follow from its mean and standard deviation.",
  unitsUnknown: "The bundle says neither units nor mean and standard deviation, so the browser's own units are taken.",
  axes: "Axes are the phone's: x to the right of the screen, y to its top, z out of it.",
  rate: (rate: string, wanted: string) => `The sensors give ${rate} readings a second; the model takes ${wanted}.`,
  quantities: {
    gravity: "acceleration with gravity",
    linear: "acceleration without gravity",
    rotation: "rotation",
  },
  channel: (quantity: string, axis: string, unit: string) => `${quantity} along ${axis}, in ${unit}`,
  turn: (axis: string, unit: string) => `rotation about ${axis}, in ${unit}`,
  refused: "The phone does not let this page read its sensors. Allow “motion sensors” for this page and try again.",
  absent: "This browser tells nothing of motion sensors. On a computer that is normal; load a file instead.",
  silent: "No reading came in three seconds. The phone may block motion sensors for this page, or have none.",
  lost: (what: string) => `Readings that could not be used: ${what}.`,
  noSeries: "motion sensors: the bundle's input is not a series of windows with channels",
  unknownChannel: (name: string) =>
    `motion sensors: channel '${name}' is not known here; names such as acc_x and gyro_z are. Take a file instead`,
  notTold: (name: string) => `motion sensors: this phone does not tell what channel '${name}' needs; take a file instead`,
  counters: {
    notFinite: "without a number", notForward: "late", gaps: "gaps", setBack: "steps back of the clock", unmatched: "unmatched", interpolated: "windows with too few readings",
  },
} as const;

export const LIVE = {
  title: "Try the model",
  start: "What do I do now?",
  stop: "Stop trying",
  waiting: "Listening…",
  drawHint: "What the model sees in your drawing appears here.",
  guess: (name: string, percent: number) => `${name}, ${percent} %`,
  note: "The numbers are not calibrated: they order the classes, and are no promise.",
} as const;

export const DRAWING = {
  lead: "Draw with your finger, say what it is, keep it.",
  canvas: "Drawing area",
  choose: "What is it?",
  keep: "Keep it",
  erase: "Erase",
  nothing: "Draw something first.",
  noClass: "Say what it is first.",
  seen: (side: number) => `As the model sees it, ${side} by ${side} pixels`,
  keyboard: "Drawing needs a finger or a mouse. By keyboard, load a file instead.",
} as const;

export const FILES = {
  lead: "A recording or examples that you already have.",
  choose: "Choose files",
  reading: "Reading…",
  csvStream: (channels: string) => `CSV of sensor readings: columns that mean ${channels}, a time, and label.`,
  csvExamples: (size: number) => `CSV of examples: ${size} numbers in each row and a column label.`,
  csvTargets: (size: number, targets: string) => `CSV of examples: ${size} numbers in each row and the columns ${targets}.`,
  npz: (shape: string) => `NPZ: arrays x (n, ${shape}) and y, or x_train, y_train, x_test, y_test, preprocessed as the model takes them.`,
  unlabelled: (count: number) => `${count} without a label were left out.`,
  lost: (what: string) => `Samples that were not used: ${what}.`,
  doubt: (spread: string) => `Its values have a standard deviation of ${spread}; preprocessed ones have about 1. Are they preprocessed as the model takes them?`,
  zip: "Several at once, or a ZIP as loggers share them: a table for each sensor, named after it (Accelerometer.csv), and one of marks; or recordings whose names say the activity.",
  each: (where: string, added: string) => `${where}: ${added}`,
  leftOut: (what: string) => `Left out: ${what}.`,
  other: (name: string) => `“${name}”: expected files that end with .csv, .tsv, .txt, .json, .zip or .npz`,
} as const;

/** What is wrong with examples, wherever they come from. */
export const EXAMPLES = {
  noLabel:
    "recording: expected examples with a label (column 'label'), got none with one; a window has a label if it is the " +
    "same throughout",
  notFinite: (example: number) => `examples: expected finite numbers, got NaN or infinite ones, first in example ${example}`,
  noToken: (most: number, got: number) => `examples: expected tokens, whole numbers from 0 to ${most}, got ${got}`,
  refused: (source: string, wrong: string) => `examples of ${source}: ${wrong}`,
  tooMany: (source: string) => `examples of ${source}: too many for the memory of a page; delete some first`,
} as const;

const UNITS = "seconds stand in time_s, milliseconds in time_ms";

/** What is wrong with a CSV; as `edge/data/examples.py` says it. */
export const CSV = {
  line: (where: string, line: number) => `${where}, line ${line}`,
  nothing: (where: string) => `${where}: expected a CSV, got nothing`,
  before: (lines: number) => `${lines} lines before the table were passed over.`,
  cutOff: (line: number) => `The last row, line ${line}, is cut off and was left out.`,
  notUtf8: "The file is not UTF-8 and was read as Windows-1252: names and labels with other letters than English ones may be wrong.",
  noSamples: (where: string, got: number) => `${where}: expected samples, got ${got}`,
  byItsName: (where: string, label: string) => `${where}: no column of labels; all of it is “${label}”, by its name.`,
  meant: (columns: string) => `Columns by the meaning of their names: ${columns}.`,
  unitTimes: (unit: string, factor: number) => `in ${unit}, taken times ${factor}, as the model takes them.`,
  unitOther: (unit: string, own: string) => `in ${unit}, taken as they are, since nothing is known of the model's ${own} and this one.`,
  unitAsIs: (unit: string) => `in ${unit}, taken as they are, since the model does not tell its unit.`,
  gravity: (channels: string, unit: string, factor: number) =>
    `${channels} look like ${unit} by their length: taken times ${factor}, as the model takes them. A unit in the columns' names, as “acc_x [g]”, settles it.`,
  timesIn: (column: string, unit: string) => `The times in “${column}” were taken as ${unit}.`,
  encoding: (where: string) => `${where}: expected text in UTF-8; save it as a CSV in UTF-8`,
  row: (where: string) => `${where}: not a row of a CSV; expected a newline after each row, and quotes that close in it`,
  twice: (where: string, column: string) => `${where}: expected one column '${column}', got several`,
  label: (line: number, got: string, classes: string) =>
    `Line ${line}: label “${got}” is none of the classes ${classes}; what has it counts as without a label.`,
  column: (where: string, column: string, name: string) =>
    `${where}, ${column === name ? column : `${column} ('${name}')`}`,
  columnOf: (column: number) => `column ${column}`,
  number: (where: string, got: string) => `${where}: expected a number, got '${got}'`,
  columns: (where: string, expected: number, got: number) =>
    `${where}: expected ${expected} columns as in the first row, got ${got}`,
  byName: (channels: string) => `a first row that names the columns ${channels} of sensor samples, or `,
  channels: (channels: string) => `channels ${channels}`,
  input: "input",
  examples: (where: string, expected: string, input: string, got: string) =>
    `${where}: expected ${expected} numbers of an example in each row (${input}), got the columns ${got}`,
  letters: "; small and capital letters differ",
  lacks: (channels: string) => `; it lacks ${channels}`,
  empty: (where: string, got: string) => `${where}: expected a number, got ${got || "an empty cell"}`,
  noWindow: (where: string, window: string, got: number) => `${where}: expected samples for a window, ${window}, got ${got}`,
  lasted: (seconds: number, column: string, hint: string, lost: string) =>
    ` in ${seconds} s by '${column}'${hint}${lost && `; not used: ${lost}`}`,
  lost: {
    notFinite: "not finite", notForward: "not forward", gaps: "gaps", unmatched: "unmatched", interpolated: "interpolated windows",
  },
  unit: (name: string, known: string | null) =>
    `; if it holds ${name}, ${known === null ? "write seconds into it" : `rename it ${known}`}`,
  notForward: (where: string, got: string, column: string) =>
    `${where}: expected times that ascend, got ${got}, …; sort the rows by '${column}'`,
  still: (where: string, got: number, column: string) =>
    `${where}: expected times that ascend, got ${got} in all rows; without its column '${column}' they are taken as evenly spaced`,
  together: (size: number, isShared: boolean, rate: number) =>
    `about ${size} readings ${isShared ? "share" : "come together"} each time, ${rate} a second`,
  spread: (column: string, words: string) =>
    `By its column '${column}' ${words}: they were spread evenly over the time to the next. If that is wrong, delete the ` +
    "examples, give each row a time of its own and load the file again.",
  packets: (where: string, wanted: number, column: string, words: string) =>
    `${where}: expected about ${wanted} readings a second with a time of their own; by '${column}' ${words}: give each row a ` +
    "time of its own",
  timeText: (where: string, column: string, got: string) =>
    `${where}, column '${column}': expected a number, got '${got}'; ${UNITS}`,
  rate: (where: string, wanted: number, got: number, column: string, hint: string) =>
    `${where}: expected about ${wanted} samples a second, at least a quarter, got ${got} by its column '${column}'` +
    (hint || "; a sensor as slow as that needs a bundle of a lower rate_hz"),
  rateHint: (column: string, got: number, wanted: number, hint: string) =>
    `Its column '${column}' says ${got} readings a second, the model takes ${wanted}${hint}. If that is wrong, delete ` +
    "the examples, correct the column and load the file again.",
  noTime: (rate: number, alike: string | null) =>
    `It has no column time_s or time_ms, so its rows were taken as ${rate} readings a second` +
    (alike === null ? ". If they are not, delete the examples, add such a column" : `, and its column '${alike}' was passed over. ` +
      `If that holds times, delete the examples, name it time_s for seconds or time_ms for milliseconds`) +
    " and load the file again.",
} as const;

/** What is wrong with an NPZ. */
/** What is wrong with recordings. */
export const RECORDINGS = {
  others: (names: string) => `Not used: ${names}.`,
  many: (most: number, got: number) => `recordings: expected at most ${most} tables, got ${got}`,
  none: (where: string) => `${where}: no table in it; expected files that end in .csv, .tsv, .txt or Sensor Logger's .json`,
  notLogged: (where: string, count: number, why: string) =>
    `${where}: expected Sensor Logger's JSON, a list of objects with a sensor each; behind ${count} of them ${why}`,
  noSensor: (where: string, number: number) =>
    `${where}, object ${number}: expected its 'sensor', a name, as Sensor Logger writes it; of other programs save a CSV`,
  noReadings: (where: string) => `${where}: expected readings of sensors, got none`,
  noUtf8: (where: string) => `${where}: expected JSON in UTF-8`,
  manyNames: (where: string, most: number) => `${where}: expected at most ${most} sensors, and columns of one, got more`,
  explodes: (where: string, packed: number, size: number) => `${where} unpacks ${packed} bytes to ${size}, which no recording does`,
  apart: (channels: string, where: string) =>
    `recordings: expected channels of one sensor side by side in the bundle, got ${channels}, of which ${where} has some`,
  never: (window: string, got: string) =>
    `recording: expected sensors that were recorded at the same time, for a window of ${window}, got ${got}`,
} as const;

/** What is wrong with a table of marks. */
export const MARKS = {
  taken: (where: string, column: string, unit: string) => `${where}: times in “${column}” taken as ${unit}.`,
  fromBegin: (where: string, column: string) => `${where}: times in “${column}” taken from the beginning of the recording.`,
  clock: (where: string, begin: number, end: number, from: number, to: number) =>
    `${where}: expected times of the samples' clock, ${begin.toFixed(1)} to ${end.toFixed(1)} s, got ${from} to ${to} s`,
  noTime: (where: string, line: number, got: string) => `${where}, line ${line}: expected a time, got '${got}'`,
} as const;

/** What is wrong with a ZIP archive, which an .npz file is as well. */
export const ZIP = {
  notPlain: (where: string) => `${where}: not a plain ZIP archive, which an .npz file and a zip of recordings are`,
  directory: (where: string) => `${where}: not a plain ZIP archive: its directory is damaged`,
  noEntry: (what: string) => `${what}: damaged: no entry where the directory says`,
  size: (what: string, most: number, got: number) => `${what}: expected at most ${most} bytes inside the file, got ${got}`,
  method: (what: string, got: number) => `${what}: expected to be stored or deflated, got ZIP method ${got}`,
  checksum: (what: string) => `${what}: damaged: its checksum differs`,
  damaged: (what: string, how: string) => `${what}: damaged: ${how}`,
} as const;

export const NPZ = {
  none: (where: string) => `${where}: expected examples, got none`,
  names: (where: string, kind: string, expected: string, got: string) =>
    `${where}: expected the bundle's ${kind} ${expected}, got ${got}`,
  missing: (where: string, expected: string, missing: string) =>
    `${where}: expected the arrays ${expected}: '${missing}' is missing`,
  shape: (where: string, expected: string, got: string) =>
    `${where}: expected ${expected} of numbers as the bundle's input, got ${got}`,
  count: (where: string, what: string, expected: number, got: number) =>
    `${where}: expected as many ${what}, ${expected}, got ${got}`,
  classShape: (what: string, got: string) => `${what}: expected class numbers (n,), got ${got}`,
  classes: (what: string, classes: readonly string[], got: string) =>
    `${what}: expected class names, or numbers from 0 to ${classes.length - 1}, got ${got}; known are ${classes.join(", ")}`,
  targets: (what: string, targets: readonly string[], got: string) =>
    `${what}: expected (n, ${targets.length}), a column for each of the targets ${targets.join(", ")}, got ${got}`,
  notFinite: (what: string) => `${what} contains NaN or infinite values; leave such examples out`,
  twice: (where: string, name: string) => `${where}: holds the array '${name}' twice`,
  notArray: (what: string) => `${what}: expected an array as NumPy writes it`,
  values: (what: string, got: string) => `${what}: expected numbers or text, got ${got}`,
  numbers: (what: string, got: string) => `${what}: expected numbers, got ${got}`,
  length: (what: string, count: number, width: number, shape: string, got: number) =>
    `${what}: expected ${count} values of ${width} bytes (${shape}), got ${got} bytes`,
} as const;

export const SENT = {
  title: "What is sent",
  lead: "Nothing leaves this phone but what is listed here.",
  last: "The last update held",
  parts: "Parts of the last update and their sizes",
  partsCount: (count: number) => `in ${count} ${count === 1 ? "part" : "parts"}`,
  none: "Nothing has been sent yet. After the first round you see here each part of the update and its size.",
  name: "Part",
  size: "Size",
  all: "Since you joined",
  up: "Sent",
  down: "Received",
  updates: "Updates",
  stays: "Stays on this phone",
  staying: [
    "your recordings, drawings and files, and their labels",
    "the personal part of the model, where the method has one",
    "this phone's key, which not even this page can read out",
  ],
  beside: "Also told",
  besides: [
    "that this phone is there, and what it can do",
    "how many examples it trained on, and how well the model did on those kept back",
    "how long a round took",
  ],
  limit: "Updates can tell something of the data they were learned from. Whoever runs the federation can look at them.",
} as const;

export const SETTINGS = {
  title: "Settings",
  use: "Which model answers",
  useHint: "What this phone trains and sends stays the same.",
  uses: { auto: "The one that is shown to be better for you", personal: "Always your own", bundle: "Always the one that you started with" },
  when: "When it may train",
  charging: "Only while charging",
  chargingUntold: "This browser does not tell whether the phone charges, so this is not enforced.",
  wifi: "Only on Wi-Fi",
  wifiUntold: "This browser does not tell which network is used, so this is not enforced.",
  awake: "Keep the screen on while it takes part",
  awakeHint: "Android stops a hidden page after a minute, an iPhone at once. With the screen on and the phone on its charger a round can finish.",
  awakeUntold: "This browser cannot keep the screen on. Set the phone's own screen time-out longer.",
  app: "On this phone",
  install: "Add to the home screen",
  installHint: "Opens without a network, and Safari then keeps its data: it deletes those of pages that were not visited for seven days.",
  installApple: "In Safari: Share, then “Add to Home Screen”.",
  installed: "Runs from the home screen.",
  persisted: "The browser has promised to keep the data of this page.",
  notPersisted: "The browser may delete the data of this page when storage gets short. Adding the page to the home screen helps.",
  persistUntold: "The browser does not tell whether it keeps the data of this page.",
  newer: "A newer version of this page is ready.",
  newerUse: "Use it now",
  end: "Ending",
  leave: "Leave the federation",
  leaveHint: "Says goodbye. Your model stays on this phone and still works.",
  leaveTitle: "Leave the federation?",
  leaveText: "Nothing will be trained or sent any more, until you come back. The model stays on this phone.",
  leaveYes: "Leave",
  forget: "Delete everything",
  forgetHint: "Key, model, examples and history of this page are deleted from this phone.",
  forgetTitle: "Delete everything?",
  forgetText: "The key, the model, your examples and all figures are deleted from this phone. This cannot be undone, and what was sent before stays part of the shared model.",
  forgetYes: "Delete everything",
  cancel: "Cancel",
} as const;

export const ANNOUNCE = {
  moved: "The federation has changed its model. What this phone has kept of yours stands under “What it learns”.",
  trained: (round: number, percent: number | null) =>
    percent === null ? `Round ${round} is done.` : `Round ${round} is done: ${percent} percent right.`,
} as const;

/** What becomes of a phone's model when its federation changes the bundle. */
export const MOVE = {
  moved: (from: string, to: string, tensors: string) => `moved from bundle ${from} to ${to}: ${tensors}`,
  back: (to: string) => `back at bundle ${to}: no round has counted since`,
  nothingYet: "no round has counted: nothing to keep",
  takesNothing: (strategy: string) => `strategy '${strategy}' takes nothing along: its model comes from the federation`,
  pendingDropped: (round: number) => `the update of round ${round}, which had no receipt yet, is dropped`,
  predictions: "predictions stay those of the model before until a round has counted",
  examplesLeft: (left: number, all: number) =>
    `${left} of ${all} examples are set aside: the new bundle has not their class, or takes another input; they stay on this phone`,
  refused: (to: string, why: string) =>
    `cannot move to bundle ${to}: ${why}; this phone keeps its model. To begin anew with the new one: delete everything ` +
    "in the settings, and ask for a new invitation",
} as const;

/** Why no round opens, by what an announcement says. */
export const HOLDS: Readonly<Record<string, string>> = {
  paused: "whoever runs the federation has paused it; rounds go on later",
  stopped: "whoever runs the federation has stopped it for now; rounds go on later",
};

/** What the device says of itself. */
export const DEVICE = {
  noBundle: (what: string) => `${what}: the federation's bundle is not here yet`,
  withKeys: (federation: string) => `federation '${federation}': takes devices with an invitation; ask for one`,
  over: "the federation has finished its rounds: examples are of use only if it begins again; ask whoever runs it",
  awaitsCoordinator: "waiting for the federation's coordinator",
  broker: (reason: string) => `broker: ${reason}`,
  paused: "paused by you",
  notCharging: "waits until this phone is charging",
  metered: "waits for Wi-Fi",
  otherTab: "another tab of this browser takes part; close it to go on here",
  unexpected: (what: string) => `something that should not happen: ${what}; reload the page`,
  noConnection: (reason: string) => `no connection to the federation: ${reason}; trying again`,
  noPayload: "this device does not have the payload that this one refers to",
  trainingFailed: (what: string) => `training failed: ${what}`,
  notTaken: (round: number, reason: string) => `round ${round}: the federation did not take the update: ${reason}`,
  noRates: (why: string) => `no learning rates can be tried: ${why}`,
  noProgram: (strategy: string, missing: string, has: string) =>
    `strategy '${strategy}': needs a training program '${missing}', the bundle has ${has}; export a bundle for this strategy`,
  diverged: (tensor: string, bad: number, all: number) =>
    `tensor '${tensor}': ${bad} of its ${all} values are NaN or infinite after local training; lower the learning rate, ` +
    "or look for extreme values in the data",
} as const;

/** Of what is kept on the phone. */
export const STORE = {
  gone: "the browser has deleted what this page had stored: its key, its model and its examples are gone; ask for a new invitation",
  goneOf: (who: string) =>
    `this phone was device ${who}, but the browser has deleted what this page had stored: its key, its model and its ` +
    "examples are gone; ask for a new invitation",
  full:
    "this phone's storage is full: the browser keeps no more for this page; nothing finished is lost; free some storage " +
    "and open the page again",
  failing: (what: string) => `the browser's storage: ${what}; open the page again, nothing finished is lost`,
  unusable: (what: string) =>
    `this page can store nothing (${what}): leave private browsing, or allow this site to store data`,
  format: (wanted: number, got: string) =>
    `this page's store: expected format ${wanted}, got ${got}; delete everything in the settings, and ask for a new invitation`,
  noBundle: "this page's store: has no bundle; delete everything in the settings",
  otherBundle: "this page's store: its bundle is another one; delete everything in the settings, and ask for a new invitation",
  lost: (content: string, how: "gone" | "damaged") =>
    `this page's store: its content ${content} is ${how}; delete everything in the settings, and ask for a new invitation`,
  otherFederation: (own: string, invited: string) =>
    `this phone belongs to federation '${own}', the invitation is for '${invited}'; delete everything in the settings first`,
  otherSigner: (bundle: string, signer: string, own: string) =>
    `bundle '${bundle}': signed by ${signer}, this phone trusts ${own} since it joined; ask whoever runs the federation, ` +
    "and delete everything in the settings if the change is meant",
  older: (bundle: string, sequence: number, newest: number) =>
    `bundle '${bundle}': of sequence ${sequence}, which is older than ${newest}, which this phone has had; have its ` +
    `signer export it with --sequence ${newest + 1}`,
  otherStrategy: (own: string, asked: string) =>
    `this phone's model is of strategy '${own}', the federation runs '${asked}'; delete everything in the settings first, and ask ` +
    "for a new invitation",
  noPayload: (reference: string) => `payload '${reference}': this device does not have it`,
} as const;

/** Of what computes. */
export const RUNTIME = {
  noStart: (what: string) =>
    `ONNX Runtime does not start in this browser: ${what}; reload the page, close other tabs, or use a newer browser`,
  tooLarge: (what: string, message: string) =>
    `${what}: this device has too little memory for the model (${message}); close other tabs, or take part with a ` +
    "device that has more",
} as const;

/** Of the hub that the page came from, and of the way to the broker. */
export const HUB = {
  notAHub: (url: string) => `${url}: is not what a hub serves; look at this page's address`,
  otherBundle: (hub: string, served: string, announced: string) =>
    `${hub} serves bundle ${served}, the federation runs ${announced}; ask whoever runs the hub to start it anew`,
  layout: "bundle: its layout is not the one that the federation announces",
  brokeOff: (url: string, what: string) => `${url}: the download broke off (${what}); trying again`,
  noAnswer: (url: string, what: string) => `${url}: no answer (${what}); is this phone in the hub's network?`,
  answers: (url: string, status: string) => `${url}: the hub answers ${status}`,
  noNetwork: (broker: string) => `${broker}: this device has no network`,
  noConnection: (broker: string) => `${broker}: no connection to the broker`,
  forbidden: (broker: string) =>
    `this page may not speak to ${broker}: its hub names no such broker; leave “Another broker” empty, or have the hub ` +
    `started with --websocket ${broker}`,
  noWebSocket: (broker: string) =>
    `the broker speaks no WebSocket at ${broker}, or nothing answers there; ask whoever runs the federation whether the ` +
    "hub and the broker run, and leave “Another broker” empty unless you were given an address",
} as const;

/** Of joining. */
export const ENROLMENT = {
  belongs: (what: string, own: string, invited: string) =>
    `this phone belongs to ${what} '${own}', the invitation is for '${invited}'; delete everything in the settings ` +
    "first, or use another browser",
  grant: (what: string, clock: string) =>
    `this phone's enrolment: ${what} (this phone's clock: ${clock}); ask for a new invitation`,
  otherKey: "this phone's enrolment: its grant is for another device or key; ask for a new invitation",
  noAnswer: (federation: string, seconds: number) =>
    `federation '${federation}': no answer in ${seconds} s; 'protofleet device invite' or the coordinator has to run ` +
    "with its key; then the same invitation goes on",
  atClock: (what: string, clock: string) => `${what} (this phone's clock: ${clock})`,
  waiting: "waiting for the federation's answer",
  refused: (federation: string, reason: string) => `federation '${federation}' refused: ${reason}; ask for a new invitation`,
  over: (reason: string, until: string) =>
    `${reason}: this invitation (until ${until}) was used, replaced or is over; ask for a new one`,
  forbidden: (reason: string, federation: string) =>
    `${reason}: whoever runs the broker has to let its access list serve federation '${federation}'; then the same ` +
    "invitation goes on",
  unreached: (reason: string) => `this phone could not be enrolled: ${reason}; then the same invitation goes on`,
  again: (reason: string) => `${reason}; trying again`,
  clock: (seconds: number, where: "ahead of" | "behind") =>
    `this phone's clock is ${seconds} s ${where} the federation's; set it`,
} as const;
