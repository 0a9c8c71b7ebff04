#!/usr/bin/python3
"""Sums up the runs of torch_ratio.sh: torch_report.py FILE, lines {"variant": ..., "result": {...}}."""

import json
import statistics
import sys

# Shares of peak that a sound PyTorch reaches; less says that something is wrong with it, not that nmoe is fast.
HEALTHY = {"torch, as installed": 0.29, "torch, tuned": 0.45}


class Variant:
    """All runs of one variant. Numbers are medians over them."""

    def __init__(self, name, runs):
        self.name = name
        self.first = runs[0]
        self.ms_per_step = statistics.median(run["ms_per_step"] for run in runs)
        self.tokens_per_s = 1e3 * self.first["tokens_per_step"] / self.ms_per_step
        self.load = statistics.median(run["load_max_over_mean"] for run in runs)


def read_variants(path):
    runs = {}
    with open(path) as lines:
        for entry in map(json.loads, lines):
            runs.setdefault(entry["variant"], []).append(entry["result"])
    peak_gflops = statistics.median(run["peak_gflops"] for run in runs["nmoe"])
    return {name: Variant(name, results) for name, results in runs.items()}, peak_gflops


def doubt(torch, peak_vectors):
    """Why PyTorch may be slow: where its BLAS does not know a processor, it takes kernels for an older one."""
    if peak_vectors == "AVX-512" and torch["blas_vectors"] == "AVX2":
        return f"its BLAS does not know this processor ({platform_name()}) and takes it for {torch['blas_core']}"
    return "is the machine idle?"


def platform_name():
    with open("/proc/cpuinfo") as lines:
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unnamed")


def health(share, least, why):
    verdict = "healthy" if share >= least else f"broken: {why}"
    return f"{verdict} ({100 * share:.1f} %, at least {100 * least:.0f} % expected)"


def main():
    variants, peak_gflops = read_variants(sys.argv[1])
    nmoe = variants["nmoe"]
    flops_per_token = nmoe.first["flops_per_token"]
    peak_vectors = "AVX-512" if "AVX-512" in nmoe.first["device"] else "AVX2"

    print(f"\nmodel  {nmoe.first['parameters'] / 1e6:.1f} M parameters, {flops_per_token / 1e6:.1f} MFLOP per token, "
          f"{nmoe.first['tokens_per_step']} tokens a step")
    print(f"nmoe   {nmoe.first['device']}")
    print(f"peak   {peak_gflops:.0f} GFLOP/s fp32 ({peak_vectors}), measured beside nmoe's runs\n")
    print(f"{'':20} ms/step  tokens/s  share of peak  router load  BLAS kernels")
    for variant in variants.values():
        share = flops_per_token * variant.tokens_per_s / peak_gflops / 1e9
        kernels = variant.first.get("blas_core", "its own")
        print(f"{variant.name:20} {variant.ms_per_step:7.0f}  {variant.tokens_per_s:8.0f}  {100 * share:11.1f} %  "
              f"{variant.load:11.2f}  {kernels}")
    print()

    for name, least in HEALTHY.items():
        torch = variants[name]
        if torch.first["parameters"] != nmoe.first["parameters"]:
            sys.exit(f"error: {name} trains {torch.first['parameters']} parameters, nmoe {nmoe.first['parameters']}")
        share = flops_per_token * torch.tokens_per_s / peak_gflops / 1e9
        why = doubt(torch.first, peak_vectors)
        print(f"baseline {name}: {health(share, least, why)}")
        if peak_vectors == "AVX-512" and torch.first["blas_vectors"] == "AVX2":
            print(f"  its BLAS only uses AVX2; of that peak, half as high: {health(2 * share, least, why)}")
    for name in HEALTHY:
        print(f"ratio {variants[name].ms_per_step / nmoe.ms_per_step:.2f} (nmoe over {name})")


if __name__ == "__main__":
    main()
