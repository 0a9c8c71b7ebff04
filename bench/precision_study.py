#!/usr/bin/env python3
"""What a precision costs in quality: pairs of runs that differ in nothing else.

    bench/precision_study.py --set data.path=data/speedrun --gpus 0,1 --out precision_study

For each seed the configuration (configs/studies/precision.toml) is trained once in each variant, from the same initial
weights, on the same data in the same order. Within a seed the variant's validation loss is compared with that of the
device's own precision (bf16 on CUDA, fp32 on a CPU); what is reported is the mean of these relative differences, in per
cent, with its 95 % interval (Student's t, paired). `order` is the scale to read that by: the device's own precision
with sums in another order, from two microbatches a step.

Writes OUT/results.json and OUT/results.md. Runs that OUT has already are not trained again: a study that was cut short
goes on, and --variants can be added to. OUT/runs is a run.dir like any other (`n viz --dir OUT/runs`).

Exit code: 1 if a run fails, or with --check if an interval goes beyond its variant's bound.
"""

import argparse
import json
import math
import os
import queue
import shutil
import statistics
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASE = "device"

NVFP4 = {"run.precision": "nvfp4", "precision.keep_last": "1"}

# name: (settings beside the configuration's, largest relative difference that is accepted, in per cent)
VARIANTS = {
    "device": ({}, None),
    "order": ({}, None),
    "fp8": ({"run.precision": "fp8"}, 0.5),
    "fp8-weight-gradients": ({"run.precision": "fp8", "precision.fp8_weight_gradients": "true"}, 0.5),
    "fp8-saved": ({"run.precision": "fp8", "precision.fp8_weight_gradients": "true", "precision.saved": "fp8"}, 0.5),
    "mxfp8": ({"run.precision": "mxfp8"}, 0.5),
    "nvfp4": (NVFP4, 1.5),
    # What of NVFP4's recipe counts.
    "nvfp4-no-transform": (NVFP4 | {"precision.nvfp4_transform": "false"}, None),
    "nvfp4-no-random": (NVFP4 | {"precision.nvfp4_random_rounding": "false"}, None),
    "nvfp4-no-tail": (NVFP4 | {"precision.keep_last": "0"}, None),
    "moments-bf16": ({"optim.adamw.state": "bf16"}, None),
    "moments-fp8": ({"optim.adamw.state": "fp8"}, 0.3),
    "momentum-bf16": ({"optim.muon.state": "bf16"}, None),
    "products-bf16": ({"optim.muon.products": "bf16"}, None),
    "gradients-bf16": ({"train.gradients": "bf16"}, None),
}

# 97.5 % points of Student's t, by degrees of freedom from 1 on.
T975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
        2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]


def die(message, remedy):
    print(f"precision_study: error: {message}\nprecision_study: remedy: {remedy}", file=sys.stderr)
    sys.exit(1)


def interval(values):
    """Mean and half the width of its 95 % interval (None of a single value)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    t = T975[len(values) - 2] if len(values) <= len(T975) + 1 else 1.96
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))


class Study:
    def __init__(self, args):
        self.args = args
        self.runs = Path(args.out) / "runs"
        self.runs.mkdir(parents=True, exist_ok=True)
        self.lock = threading.Lock()
        self.failed = []
        printed = self.program("config", args.config, *self.sets({}))
        if printed.returncode != 0:
            die(printed.stderr.strip(), "see docs/config.md")
        shape = tomllib.loads(printed.stdout)
        self.microbatch = shape["train"]["microbatch_seqs"]
        self.tokens = shape["train"]["steps"] * shape["train"]["batch_seqs"] * shape["data"]["seq_len"]

    def sets(self, settings):
        chosen = [f"{key}={value}" for key, value in settings.items()] + self.args.set
        return [word for one in chosen for word in ("--set", one)]

    def program(self, *words, env=None):
        return subprocess.run([self.args.program, *words], capture_output=True, text=True, env=env, check=False)

    def settings(self, variant, seed):
        settings = {"run.name": f"{variant}-{seed}", "run.experiment": variant, "run.dir": str(self.runs),
                    "run.seed": seed}
        if variant == "order":
            settings["train.microbatch_seqs"] = max(1, self.microbatch // 2)
        return settings | VARIANTS[variant][0]

    def result(self, variant, seed):
        """The row of a run that is done, or None."""
        shown = self.program("runs", "show", f"{variant}-{seed}", "--dir", str(self.runs), "--json")
        row = json.loads(shown.stdout) if shown.returncode == 0 else {}
        return row if row.get("status") == "completed" and row.get("valid") is not None else None

    def train(self, variant, seed, gpu):
        if self.result(variant, seed):
            return
        env = dict(os.environ) if gpu is None else dict(os.environ, CUDA_VISIBLE_DEVICES=gpu)
        checkpoints = self.runs / "checkpoints" / f"{variant}-{seed}"
        shutil.rmtree(checkpoints, ignore_errors=True)  # of a run that was cut short
        done = self.program("train", self.args.config, *self.sets(self.settings(variant, seed)), env=env)
        shutil.rmtree(checkpoints, ignore_errors=True)
        row = self.result(variant, seed)
        with self.lock:
            if done.returncode != 0 or row is None:
                self.failed.append(f"{variant}, seed {seed} (exit code {done.returncode}): "
                                   + "\n".join((done.stdout + done.stderr).splitlines()[-8:]))
                return
            print(f"{variant:24} seed {seed:3}  validation loss {row['valid']:.5f}", flush=True)

    def work(self, jobs, gpu):
        while True:
            try:
                variant, seed = jobs.get_nowait()
            except queue.Empty:
                return
            self.train(variant, seed, gpu)

    def run(self):
        jobs = queue.Queue()
        for seed in range(1, self.args.seeds + 1):
            for variant in self.args.variants:
                jobs.put((variant, seed))
        gpus = [None] if self.args.gpus is None else self.args.gpus.split(",")
        workers = [threading.Thread(target=self.work, args=(jobs, gpu)) for gpu in gpus
                   for _ in range(self.args.per_gpu)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self.failed:
            die("not all runs were trained:\n" + "\n".join(self.failed),
                "mend what the runs say; those that were trained are kept")

    def summary(self):
        seeds = range(1, self.args.seeds + 1)
        rows = {variant: [self.result(variant, seed) for seed in seeds] for variant in self.args.variants}
        base = [row["valid"] for row in rows[BASE]]
        summary = []
        for variant, results in rows.items():
            losses = [row["valid"] for row in results]
            relative = [100 * (loss / other - 1) for loss, other in zip(losses, base)]
            mean, half = interval(relative)
            summary.append({"variant": variant, "settings": VARIANTS[variant][0], "losses": losses,
                            "differences_percent": relative, "mean_percent": mean, "half_width_percent": half,
                            "bound_percent": VARIANTS[variant][1]})
        return {"config": Path(self.args.config).name, "set": self.args.set, "tokens": self.tokens,
                "seeds": len(base), "variants": summary}


def markdown(study):
    lines = [f"{study['seeds']} seeds, {study['tokens'] / 1e6:.1f} M tokens each.", "",
             "| | validation loss | against the device's own, % | 95 % interval | accepted |",
             "| --- | --- | --- | --- | --- |"]
    for one in study["variants"]:
        mean, half, bound = one["mean_percent"], one["half_width_percent"], one["bound_percent"]
        difference = span = ""
        if one["variant"] != BASE:
            difference = f"{mean:+.3f}"
            span = "" if half is None else f"{mean - half:+.3f} to {mean + half:+.3f}"
        lines.append(f"| `{one['variant']}` | {statistics.fmean(one['losses']):.4f} | {difference} | {span} | "
                     f"{'' if bound is None else bound} |")
    return "\n".join(lines) + "\n"


def beyond(study):
    """Variants whose interval is not below their bound."""
    return [one["variant"] for one in study["variants"] if one["bound_percent"] is not None
            and not one["mean_percent"] + (one["half_width_percent"] or 0.0) <= one["bound_percent"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default=str(ROOT / "configs/studies/precision.toml"))
    parser.add_argument("--program", default=os.environ.get("NMOE_PROGRAM"), help="`n`; else the newest of build/*/n")
    parser.add_argument("--out", default="precision_study")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--variants", default="device,order,fp8,mxfp8",
                        help=f"of {', '.join(VARIANTS)}; `device` is always among them")
    parser.add_argument("--gpus", help="their numbers, such as 0,1; else what the program takes by itself")
    parser.add_argument("--per-gpu", type=int, default=1, help="runs at once on each")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as `n train` takes it")
    parser.add_argument("--check", action="store_true", help="fail if an interval goes beyond what is accepted")
    args = parser.parse_args()
    if args.program is None:
        built = sorted(ROOT.glob("build/*/n"), key=lambda path: path.stat().st_mtime)
        if not built:
            die("the program is not built", "docs/first-hour.md, or --program")
        args.program = str(built[-1])
    args.variants = list(dict.fromkeys([BASE, *args.variants.split(",")]))
    unknown = [one for one in args.variants if one not in VARIANTS]
    if unknown or args.seeds < 1 or args.per_gpu < 1:
        die(f"no such variants: {unknown}" if unknown else "at least one seed, and one run on a GPU", "see --help")

    study = Study(args)
    study.run()
    results = study.summary()
    (Path(args.out) / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (Path(args.out) / "results.md").write_text(markdown(results))
    print("\n" + markdown(results), end="")
    if args.check and beyond(results):
        die(f"beyond what is accepted: {', '.join(beyond(results))}", "docs/precision.md")


if __name__ == "__main__":
    main()
