/** Scores a model on the device's own test part, as `edge/learning/training.py` does. */

import { TASKS } from "../strategies/tasks.ts";
import type { LearningTask } from "../strategies/tasks.ts";
import type { Evaluation, Score, Statistics, TaskName } from "../strategies/types.ts";
import type { Network, Tensor } from "../tensors/tensors.ts";
import type { Programs } from "./programs.ts";

/** Examples (n, …) and their classes (n,) int64 or targets (n, T) float32; n may be 0. */
export interface TestPart {
  readonly x: Tensor;
  readonly y: Tensor;
}

/** The two evaluating functions of `ClientTools`. */
export class Evaluator {
  readonly task: LearningTask;
  readonly #programs: Programs;
  readonly #outputs: number;
  readonly #test: TestPart;

  /** `outputs`: how many classes or targets the bundle names. */
  constructor(programs: Programs, task: TaskName, outputs: number, test: TestPart) {
    this.task = TASKS[task];
    this.#programs = programs;
    this.#outputs = outputs;
    this.#test = test;
  }

  /** Statistics and mean loss; `score` classifies the features in place of the model's head. */
  async evaluate(network: Network, score: Score | null = null): Promise<Evaluation> {
    const { y } = this.#test;
    const scores = await this.scores(network, score);
    const loss = this.task.losses.get(this.task.lossOf(this.#programs.gradFns.keys()))!;
    return { own: this.#count(scores), ownLoss: loss(scores, y), more: new Map() };
  }

  /** Null where there is no test part. */
  async statistics(network: Network, score: Score | null = null): Promise<Statistics | null> {
    return this.#count(await this.scores(network, score));
  }

  /** Outputs (n, outputs) of the test part. */
  async scores(network: Network, score: Score | null = null): Promise<Tensor> {
    const { x } = this.#test;
    return score === null
      ? this.#programs.predict(network, x)
      : score(await this.#programs.features(network, x));
  }

  #count(scores: Tensor): Statistics | null {
    const { y } = this.#test;
    return y.shape[0] === 0 ? null : this.task.statistics(scores, y, this.#outputs);
  }
}
