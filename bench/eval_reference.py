#!/usr/bin/env python3
"""What transformers says of CORE's items, for comparison with `n eval --out`.

    bench/eval_reference.py MODEL DATA --tasks piqa,winograd --limit 200 --out reference.jsonl
    bench/eval_reference.py --compare NMOE/items.jsonl reference.jsonl

MODEL is a folder that `n export` wrote, DATA the folder of evaluation data. Prompts, order and examples are made here by Python's
own `random`, from the definition in nanochat's core_eval.py, without cache and in float32: nothing of nmoe is used. An item's texts
make a batch, the shorter ones filled up behind their ends, which nothing before sees.
`--limit` means what it means for `n eval`: examples come from the items within it.

The comparison fails where a loss differs by more than 1e-4 relative and no router was at a tie (its last chosen and first other
expert as close as fp32 sums of another order are), where choices differ that these do not explain, or where greedy answers differ
whose margin is not small. Needs torch, transformers, tokenizers and zstandard (or data that is not compressed).
"""

import argparse
import gzip
import io
import json
import pathlib
import random
import sys
import tomllib

TOLERANCE = 1e-4  # relative, of a text's loss
TIE = 1e-5  # of two router logits of about 1


def open_data(path):
    if path.exists():
        return path.open(encoding="utf-8")
    zst, gz = path.with_name(path.name + ".zst"), path.with_name(path.name + ".gz")
    if zst.exists():
        import zstandard

        return io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(zst.open("rb")), encoding="utf-8")
    return gzip.open(gz, "rt", encoding="utf-8")


def texts_of(task, row, shots):
    """The texts of an item; of language modelling without and with the answer."""
    d = task.get("delimiter", " ")
    before = ""
    for shot in shots:
        if task["type"] == "multiple_choice":
            text = shot["query"] + d + shot["choices"][shot["gold"]]
        elif task["type"] == "schema":
            text = shot["context_options"][shot["gold"]] + d + shot["continuation"]
        else:
            text = shot["context"].strip() + d + shot["continuation"]
        before += text + "\n\n"
    if task["type"] == "multiple_choice":
        return [before + row["query"] + d + choice for choice in row["choices"]]
    if task["type"] == "schema":
        return [before + context + d + row["continuation"] for context in row["context_options"]]
    without = before + row["context"].strip() + d
    return [without.strip(), without + row["continuation"]]


def common(lists, from_end):
    size = min(len(ids) for ids in lists) - 1
    for i in range(size):
        at = -1 - i if from_end else i
        if any(ids[at] != lists[0][at] for ids in lists):
            return i
    return size


def spans_of(task, ids):
    """What is scored of each text: its ids and where that begins."""
    if task["type"] == "multiple_choice":
        begin = common(ids, from_end=False)
        return [(text, begin) for text in ids]
    if task["type"] == "schema":
        size = common(ids, from_end=True)
        return [(text, len(text) - size) for text in ids]
    without, whole = ids
    assert whole[: len(without)] == without, "the answer joins with its prompt"
    return [(whole, len(without))]


class RouterGaps:
    """How close each text's routers came to another choice: the least distance of a chosen and another expert's logits."""

    def __init__(self, model):
        self.top_k = getattr(model.config, "num_experts_per_tok", 0)
        self.logits = []
        for name, module in model.named_modules():
            if name.endswith(".mlp.gate"):
                module.register_forward_hook(self.take)

    def take(self, module, inputs, output):
        self.logits.append(output[0] if isinstance(output, tuple) else output)

    def of(self, lengths):
        """Of the texts of the batch that went through, lengths[i] tokens each."""
        gaps = [float("inf")] * len(lengths)
        for logits in self.logits:
            best = logits.float().reshape(len(lengths), -1, logits.shape[-1]).topk(self.top_k + 1, dim=-1).values
            distance = best[..., -2] - best[..., -1]
            gaps = [min(gap, distance[i, :length].min().item()) for i, (gap, length) in enumerate(zip(gaps, lengths))]
        self.logits.clear()
        return gaps


def evaluate(args):
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(device).eval()
    routers = RouterGaps(model)
    tokenizer = Tokenizer.from_file(str(pathlib.Path(args.model) / "tokenizer.json"))
    bos = tokenizer.token_to_id(args.bos)
    assert bos is not None, f"the tokenizer has no {args.bos}: see --bos"
    longest = args.context or model.config.max_position_embeddings

    core = tomllib.loads((pathlib.Path(__file__).parent.parent / "configs/eval/core.toml").read_text())
    wanted = args.tasks.split(",") if args.tasks else list(core["tasks"])
    with open(args.out, "w", encoding="utf-8") as out:
        for name in wanted:
            task = core["tasks"][name]
            rows = [json.loads(line) for line in open_data(pathlib.Path(args.data) / task["file"])]
            order = list(range(len(rows)))
            random.Random(1337).shuffle(order)
            if args.limit:
                order = order[: args.limit]
            for i, at in enumerate(order):
                others = order[:i] + order[i + 1 :]
                shots = [rows[j] for j in random.Random(1234 + i).sample(others, task.get("shots", 0))]
                row = rows[at]
                ids = [[bos] + tokenizer.encode(t, add_special_tokens=False).ids for t in texts_of(task, row, shots)]
                line = {"task": "core/" + name, "item": i, "row": at, "nats": [], "tokens": [], "greedy": [], "margin": []}
                spans = []
                for text, begin in spans_of(task, ids):
                    cut = max(0, len(text) - longest)
                    spans.append((text[cut:], max(1, begin - cut)))
                size = max(len(text) for text, _ in spans)
                batch = torch.tensor([text + [bos] * (size - len(text)) for text, _ in spans], device=device)
                with torch.no_grad():
                    hidden = model.base_model(batch, use_cache=False).last_hidden_state
                line["router_gap"] = routers.of([len(text) for text, _ in spans])
                for (text, begin), states in zip(spans, hidden):
                    with torch.no_grad():
                        logits = model.lm_head(states[begin - 1 : len(text) - 1])
                    targets = torch.tensor(text[begin:], device=device)
                    losses = torch.nn.functional.cross_entropy(logits.double(), targets, reduction="none")
                    best = logits.topk(2, dim=-1).values
                    line["nats"].append(losses.sum().item())
                    line["tokens"].append(len(targets))
                    line["greedy"].append(bool((logits.argmax(-1) == targets).all()))
                    line["margin"].append((best[:, 0] - best[:, 1]).min().item())
                if task["type"] != "language_modeling":
                    means = [nats / tokens for nats, tokens in zip(line["nats"], line["tokens"])]
                    line["gold"], line["choice"] = row["gold"], means.index(min(means))
                    line["correct"] = line["choice"] == row["gold"]
                else:
                    line["correct"] = line["greedy"][0]
                out.write(json.dumps(line) + "\n")
            print(name, len(order), "items", file=sys.stderr)


def compare(ours_path, reference_path):
    ours = {}
    for line in map(json.loads, open(ours_path, encoding="utf-8")):
        ours[line["task"], line["item"]] = line
    worst, texts, bad, ties, flips, right = 0.0, 0, 0, 0, 0, {}
    for theirs in map(json.loads, open(reference_path, encoding="utf-8")):
        mine = ours[theirs["task"], theirs["item"]]
        assert mine["row"] == theirs["row"] and mine["tokens"] == theirs["tokens"], f"other texts: {mine} {theirs}"
        for a, b, gap in zip(mine["nats"], theirs["nats"], theirs["router_gap"]):
            error = abs(a - b) / max(abs(b), 1e-3)
            worst, texts = max(worst, error), texts + 1
            if error > TOLERANCE:
                tied = gap < TIE
                ties, bad = ties + tied, bad + (not tied)
                print(f"{theirs['task']} item {theirs['item']}: {a:.6f} nats, transformers {b:.6f}, {error:.1e} apart;"
                      f" a router's choice by {gap:.1e}")
        count = right.setdefault(theirs["task"], [0, 0, 0])
        count[0] += 1
        count[1] += mine["correct"]
        count[2] += theirs["correct"]
        if "choice" in theirs and mine["choice"] != theirs["choice"]:
            means = [nats / tokens for nats, tokens in zip(theirs["nats"], theirs["tokens"])]
            a, b = means[mine["choice"]], means[theirs["choice"]]
            explained = abs(a - b) <= 2 * TOLERANCE * max(abs(a), abs(b))
        elif "choice" not in theirs and mine["greedy"] != theirs["greedy"]:
            explained = min(theirs["margin"]) < 1e-3
        else:
            continue
        flips += 1
        if not explained:
            bad += 1
            print("differs:", json.dumps(mine), json.dumps(theirs))
    for task, (items, a, b) in right.items():
        print(f"{task:40} {items:6} items  nmoe {a / items:.4f}  transformers {b / items:.4f}")
    print(f"{texts} losses, largest relative difference {worst:.2e}; {flips} answers differ;"
          f" {ties} apart by a tie in a router, {bad} beyond tolerance")
    return 1 if bad or not right else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("data", nargs="?")
    parser.add_argument("--tasks", help="of CORE, with commas; all without it")
    parser.add_argument("--limit", type=int, default=200, help="items of a task; 0: all")
    parser.add_argument("--context", type=int, default=0, help="tokens of a text; 0: the model's")
    parser.add_argument("--bos", default="<|endoftext|>", help="the token that every text begins with")
    parser.add_argument("--out", default="reference.jsonl")
    parser.add_argument("--compare", nargs=2, metavar=("ITEMS", "REFERENCE"))
    args = parser.parse_args()
    if args.compare:
        sys.exit(compare(*args.compare))
    if not args.model or not args.data:
        parser.error("a model and the data's folder are needed")
    evaluate(args)


if __name__ == "__main__":
    main()
