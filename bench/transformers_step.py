#!/usr/bin/env python3
"""How long a training step of a model takes in transformers, for comparison with `n bench train`.

A model of random weights from a type of transformers' and the keys given, in BF16 with a fused AdamW whose moments are
BF16 too, nothing of it in FP32 but what the model's code makes so: less work and memory than nmoe's steps, which have
masters. Each pair of an experts' and an attention implementation runs by itself, with what backward needs kept, or made
again where that does not fit (--checkpointing); the fastest counts. Ids are random, or of a corpus of `n prep`.

    bench/transformers_step.py gpt_oss --set num_hidden_layers=4 --set num_local_experts=32 --tokens 65536
"""

import argparse
import gc
import json
import pathlib
import statistics
import time

import numpy
import torch
import transformers

BATCHES = 2  # of ids, in turns


def read_ids(arguments, vocab_size, count):
    if arguments.data is None:
        return torch.randint(0, vocab_size, (count,), generator=torch.Generator().manual_seed(0))
    shard = sorted(pathlib.Path(arguments.data, "train").glob("*.npy"))[0]
    ids = numpy.load(shard, mmap_mode="r")[:count]
    if len(ids) < count:
        raise SystemExit(f"{shard} has {len(ids)} ids, {count} are needed: lower --tokens")
    return torch.from_numpy(ids.astype(numpy.int64))


def time_step(arguments, experts, attention):
    config = transformers.AutoConfig.for_model(arguments.type, **dict(map(read_setting, arguments.set)))
    config.use_cache = False
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=attention)
    model.set_experts_implementation(experts)
    torch.set_default_dtype(torch.float32)
    model.train()
    if arguments.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = read_ids(arguments, config.vocab_size, BATCHES * arguments.tokens).view(
        BATCHES, -1, arguments.microbatch_seqs, arguments.seq_len).cuda()
    times, losses = [], []
    for step in range(arguments.warmup + arguments.steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for microbatch in ids[step % BATCHES]:
            loss = model(input_ids=microbatch, labels=microbatch).loss / ids.shape[1]
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
        losses.append(loss.item() * ids.shape[1])
    ms = statistics.median(times[arguments.warmup:])
    return {"experts": experts, "attention": attention, "ms_per_step": round(ms, 1),
            "tokens_per_s": round(1e3 * arguments.tokens / ms), "loss": round(losses[-1], 4),
            "parameters": sum(p.numel() for p in model.parameters()),
            "gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)}


def read_setting(text):
    key, _, value = text.partition("=")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("type", help="model_type of a config.json, such as gpt_oss or glm4_moe; its defaults hold")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="a key of config.json")
    parser.add_argument("--tokens", type=int, default=65536, help="of a step")
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--microbatch-seqs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--data", help="a corpus of n prep, of ids that the model has")
    parser.add_argument("--experts", default="grouped_mm", help="implementations, by commas")
    parser.add_argument("--attention", default="sdpa", help="implementations, by commas")
    parser.add_argument("--checkpointing", action="store_true", help="make layers' activations again in backward")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "transformers", transformers.__version__)
    results = []
    for experts in arguments.experts.split(","):
        for attention in arguments.attention.split(","):
            try:
                results.append(time_step(arguments, experts, attention))
                print(json.dumps(results[-1]), flush=True)
            except Exception as error:  # not enough memory, or no such pair: the others count
                print(json.dumps({"experts": experts, "attention": attention, "error": str(error)[:300]}), flush=True)
            torch.set_default_dtype(torch.float32)
            gc.collect()
            torch.cuda.empty_cache()
    if not results:
        raise SystemExit("no pair of implementations ran")
    print("fastest:", json.dumps(min(results, key=lambda result: result["ms_per_step"])))


if __name__ == "__main__":
    main()
