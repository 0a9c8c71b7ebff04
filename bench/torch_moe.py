#!/usr/bin/python3
"""nmoe's model in PyTorch: the yardstick of torch_ratio.sh, and an independent check of nmoe's arithmetic.

  torch_moe.py time CONFIG [--set KEY=VALUE ...]    times training steps on random ids, prints JSON
  torch_moe.py check CHECKPOINT [--loss NATS]       validation loss of a checkpoint's weights, prints JSON

Written as a practised user of PyTorch 1.13 would write it, in plain eager mode: fused input projections, tokens
sorted by expert, no gradient buffers zeroed, no Python in inner loops but the one over experts. Modules are
named after nmoe's parameters, so that a checkpoint's tensors find their places.

B sequences, S positions, T = B*S tokens, D model width, V vocabulary, H heads, N and P the parts of a query or key
head without and with RoPE, U value head width, E routed experts, K of them a token, F hidden width.
"""

import argparse
import ctypes
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time
import tomllib
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

REPO = pathlib.Path(__file__).resolve().parent.parent

# The part of nmoe's configuration space that this file covers.
MODEL_COVERED = {
    "model.activation": "swiglu",
    "model.attention": "mla",
    "model.window": 0,
    "model.tied_head": False,
    "model.rope.layout": "interleaved",
    "model.yarn.factor": 1.0,
    "model.mla.q_lora_rank": 0,
    "model.moe.score": "sigmoid",
    "model.moe.num_groups": 1,
    "model.moe.normalise_weights": True,
    "model.moe.routed_scale": 1.0,
}
TRAINING_COVERED = {
    "model.moe.balance_loss": 0.0,
    "model.moe.z_loss": 0.0,
    "optim.matrices.optimizer": "adamw",
    "optim.experts.optimizer": "adamw",
    "optim.router.optimizer": "adamw",
    "optim.rest.optimizer": "adamw",
    "optim.schedule.warmup": 0,
    "optim.schedule.decay": 0,
}


AT_LEAST_ONE = ("model.vocab_size", "model.moe.num_experts", "model.moe.num_shared_experts")


class Problem(Exception):
    """What the user can put right: message and remedy."""


# ---- configuration ------------------------------------------------------------------------------------------------


def lookup(config, key):
    for part in key.split("."):
        config = getattr(config, part, None)
    return config


def parse_config(text, covered):
    """The resolved configuration (what `n config` prints and a checkpoint holds) as nested namespaces."""
    config = json.loads(json.dumps(tomllib.loads(text)), object_hook=lambda section: SimpleNamespace(**section))
    needed = {key: f"= {json.dumps(value)}" for key, value in covered.items() if lookup(config, key) != value}
    needed |= {key: ">= 1" for key in AT_LEAST_ONE if not lookup(config, key)}
    if needed:
        raise Problem(f"the PyTorch model does not cover this configuration's {', '.join(needed)}",
                      "it needs " + ", ".join(f"{key} {value}" for key, value in needed.items()))
    return config


def resolve_config(program, file, overrides):
    command = [str(program), "config", file] + [argument for pair in overrides for argument in ("--set", pair)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise Problem(f"{' '.join(command)} failed:\n{result.stderr.strip()}", "see its message")
    return parse_config(result.stdout, MODEL_COVERED | TRAINING_COVERED)


# ---- model --------------------------------------------------------------------------------------------------------


class RmsNorm(nn.Module):

    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def linear(in_features, out_features):
    return nn.Linear(in_features, out_features, bias=False)


def swiglu(pre):  # [..., 2F] -> [..., F]
    gate, up = pre.chunk(2, dim=-1)
    return F.silu(gate) * up


def rope_rotations(rope, rope_dim, seq_len):
    """exp(i * position * theta^(-2j / P)), [S, 1, P / 2] complex."""
    frequencies = rope.theta**(-torch.arange(0, rope_dim, 2, dtype=torch.float64) / rope_dim)
    angles = torch.outer(torch.arange(seq_len, dtype=torch.float64), frequencies)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64).unsqueeze(1)


def rotate(x, rotations):  # [B, S, heads, P], pairs interleaved
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * rotations).flatten(-2)


class LatentAttention(nn.Module):

    def __init__(self, model):
        super().__init__()
        mla = model.mla
        self.num_heads = model.num_heads
        self.nope, self.rope, self.value = mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.v_head_dim
        self.q = linear(model.dim, self.num_heads * (self.nope + self.rope))
        self.kv_down = linear(model.dim, mla.kv_lora_rank)
        self.kv_norm = RmsNorm(mla.kv_lora_rank, mla.norm_eps)
        self.k_rope = linear(model.dim, self.rope)
        self.kv_up = linear(mla.kv_lora_rank, self.num_heads * (self.nope + self.value))
        self.out = linear(self.num_heads * self.value, model.dim)

    def forward(self, x, rotations, mask):  # [B, S, D], [S, 1, P / 2], [S, S]
        B, S, _ = x.shape
        H = self.num_heads
        q_nope, q_rope = self.q(x).view(B, S, H, -1).split((self.nope, self.rope), dim=-1)
        q = torch.cat((q_nope, rotate(q_rope, rotations)), dim=-1)
        kv = self.kv_up(self.kv_norm(self.kv_down(x))).view(B, S, H, -1)
        k_nope, v = kv.split((self.nope, self.value), dim=-1)
        k_rope = rotate(self.k_rope(x).view(B, S, 1, -1), rotations)
        k = torch.cat((k_nope, k_rope.expand(-1, -1, H, -1)), dim=-1)

        q, k, v = (t.transpose(1, 2).reshape(B * H, S, -1) for t in (q, k, v))
        logits = torch.baddbmm(mask.expand(B * H, S, S), q, k.transpose(1, 2), alpha=q.shape[-1]**-0.5)
        heads = torch.bmm(logits.softmax(dim=-1), v)
        return self.out(heads.view(B, H, S, -1).transpose(1, 2).reshape(B, S, -1))


class Mlp(nn.Module):

    def __init__(self, dim, hidden):
        super().__init__()
        self.add_module("in", linear(dim, 2 * hidden))
        self.out = linear(hidden, dim)

    def forward(self, x):
        return self.out(swiglu(getattr(self, "in")(x)))


class Moe(nn.Module):
    # One matrix per expert: indexing a stacked [E, out, in] parameter would write a gradient of the whole stack
    # for each expert.

    def __init__(self, model):
        super().__init__()
        moe = model.moe
        self.top_k = moe.top_k
        self.router = linear(model.dim, moe.num_experts)
        self.register_buffer("router_bias", torch.zeros(moe.num_experts))
        self.register_buffer("counts", torch.zeros(moe.num_experts, dtype=torch.long), persistent=False)
        self.experts_in = nn.ParameterList(
            nn.Parameter(torch.empty(2 * moe.expert_dim, model.dim)) for _ in range(moe.num_experts))
        self.experts_out = nn.ParameterList(
            nn.Parameter(torch.empty(model.dim, moe.expert_dim)) for _ in range(moe.num_experts))
        self.shared = Mlp(model.dim, moe.num_shared_experts * moe.expert_dim)

    def forward(self, x):  # [B, S, D]
        tokens = x.flatten(0, 1)  # [T, D]
        scores = self.router(tokens).sigmoid()  # [T, E]
        chosen = (scores.detach() + self.router_bias).topk(self.top_k, sorted=False).indices  # [T, K]
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(dim=-1, keepdim=True)

        # The T * K rows in expert order.
        experts = chosen.flatten()
        order = experts.argsort(stable=True)
        token_of_row = order.div(self.top_k, rounding_mode="floor")
        counts = experts.bincount(minlength=len(self.counts))
        self.counts += counts

        rows = tokens.index_select(0, token_of_row).split(counts.tolist())
        outputs = [
            F.linear(swiglu(F.linear(expert_rows, w_in)), w_out)
            for expert_rows, w_in, w_out in zip(rows, self.experts_in, self.experts_out)
        ]
        weighted = torch.cat(outputs) * weights.flatten()[order].unsqueeze(1)
        return self.shared(tokens).index_add(0, token_of_row, weighted).view_as(x)

    @torch.no_grad()
    def update_bias(self, rate):
        """Loss-free balancing (arXiv 2408.15664). Returns the rows each expert got since the last call, [E]."""
        counts = self.counts.clone()
        self.router_bias += rate * torch.sign(counts.sum() - counts * len(counts))
        self.counts.zero_()
        return counts


class Block(nn.Module):

    def __init__(self, model, layer):
        super().__init__()
        self.attention_norm = RmsNorm(model.dim, model.norm_eps)
        self.attention = LatentAttention(model)
        self.mlp_norm = RmsNorm(model.dim, model.norm_eps)
        if layer < model.num_dense_layers:
            self.mlp = Mlp(model.dim, model.dense_dim)
        else:
            self.moe = Moe(model)

    def forward(self, x, rotations, mask):
        x = x + self.attention(self.attention_norm(x), rotations, mask)
        feed_forward = self.moe if hasattr(self, "moe") else self.mlp
        return x + feed_forward(self.mlp_norm(x))


class LanguageModel(nn.Module):

    def __init__(self, config):
        super().__init__()
        model, seq_len = config.model, config.data.seq_len
        self.embedding = nn.Embedding(model.vocab_size, model.dim)
        self.layers = nn.ModuleList(Block(model, layer) for layer in range(model.num_layers))
        self.final_norm = RmsNorm(model.dim, model.norm_eps)
        self.head = linear(model.dim, model.vocab_size)
        self.register_buffer("rotations", rope_rotations(model.rope, model.mla.qk_rope_head_dim, seq_len), False)
        self.register_buffer("mask", torch.full((seq_len, seq_len), -math.inf).triu(1), False)

    def forward(self, ids, targets, reduction="mean"):
        """Cross-entropy in nats of [B, S] ids and the ids that follow them."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.rotations, self.mask)
        logits = self.head(self.final_norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)

    def moe_layers(self):
        return [layer.moe for layer in self.layers if hasattr(layer, "moe")]


# ---- training -----------------------------------------------------------------------------------------------------


def parameter_group(name):
    """nmoe's name of the [optim.*] section, and whether weight decay applies."""
    if "norm" in name or name == "embedding.weight":
        return "rest", False
    if name == "head.weight":
        return "rest", True
    if name.endswith("router.weight"):
        return "router", False
    return ("experts" if ".experts_" in name else "matrices"), True


def initialise(model, config):
    init = config.model.init
    special = {"embedding.weight": init.embedding_std}
    for name, parameter in model.named_parameters():
        if "norm" in name:
            continue
        std = init.router_std if name.endswith("router.weight") else special.get(name, init.std)
        if init.depth_scaled_outputs and (name.endswith(".out.weight") or "experts_out" in name):
            std /= math.sqrt(2 * config.model.num_layers)
        nn.init.trunc_normal_(parameter, std=std, a=-init.truncation * std, b=init.truncation * std)


def make_optimizer(model, config):
    groups = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(parameter_group(name), []).append(parameter)
    settings = [{
        "params": parameters,
        "lr": getattr(config.optim, group).lr,
        "weight_decay": getattr(config.optim, group).weight_decay if decay else 0.0,
    } for (group, decay), parameters in groups.items()]
    adamw = config.optim.adamw
    return torch.optim.AdamW(settings, betas=(adamw.beta1, adamw.beta2), eps=adamw.eps)


def train_step(model, optimizer, config, ids):  # [batch_seqs, S + 1]
    """One optimizer step. Returns when its forward and backward passes ended, and each router's counts."""
    optimizer.zero_grad(set_to_none=True)
    for batch in ids.split(config.train.microbatch_seqs):
        loss = model(batch[:, :-1], batch[:, 1:]) * (len(batch) / len(ids))
        loss.backward()
    backward_done = time.perf_counter()
    if config.optim.clip_norm > 0:
        nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip_norm)
    optimizer.step()
    counts = [moe.update_bias(config.model.moe.bias_rate) for moe in model.moe_layers()]
    return backward_done, counts


def describe_blas():
    """Which OpenBLAS does this process's matrix products, and with which kernels."""
    with open("/proc/self/maps") as maps:
        paths = sorted({line.split()[-1] for line in maps if "libopenblas" in line})
    if not paths:
        raise Problem("PyTorch runs without OpenBLAS here",
                      "apt-get install --no-install-recommends libopenblas0-openmp")
    library = ctypes.CDLL(paths[0])
    library.openblas_get_corename.restype = ctypes.c_char_p
    core = library.openblas_get_corename().decode()
    vectors = "AVX-512" if core in ("SkylakeX", "Cooperlake", "SapphireRapids") else "AVX2"
    return {"blas": paths[0], "blas_core": core, "blas_vectors": vectors}


def worst_load(counts):
    """Rows of the busiest expert over the mean, of the worst layer."""
    return max((layer.max() / layer.float().mean()).item() for layer in counts)


def time_training(arguments):
    config = resolve_config(arguments.program, arguments.config, arguments.overrides)
    torch.manual_seed(config.run.seed)
    model = LanguageModel(config)
    initialise(model, config)
    optimizer = make_optimizer(model, config)

    total, forward_backward = [], []
    for step in range(arguments.warmup + arguments.steps):
        ids = torch.randint(config.model.vocab_size, (config.train.batch_seqs, config.data.seq_len + 1))
        begin = time.perf_counter()
        backward_done, counts = train_step(model, optimizer, config, ids)
        end = time.perf_counter()
        if step >= arguments.warmup:
            total.append(1e3 * (end - begin))
            forward_backward.append(1e3 * (backward_done - begin))

    ms_per_step = statistics.median(total)
    tokens_per_step = config.train.batch_seqs * config.data.seq_len
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "steps": arguments.steps,
        "tokens_per_step": tokens_per_step,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "ms_per_step": round(ms_per_step, 3),
        "ms_forward_backward": round(statistics.median(forward_backward), 3),
        "tokens_per_s": round(1e3 * tokens_per_step / ms_per_step, 1),
        "load_max_over_mean": round(worst_load(counts), 3),
    } | describe_blas()


# ---- check --------------------------------------------------------------------------------------------------------


def read_safetensors(path):
    """name -> tensor, of a file of F32 tensors (https://huggingface.co/docs/safetensors)."""
    data = np.memmap(path, np.uint8, "r")
    header_bytes = int(data[:8].view("<u8")[0])
    tensors = {}
    for name, entry in json.loads(data[8:8 + header_bytes].tobytes()).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise Problem(f"{path}: '{name}' is {entry['dtype']}", "only F32 checkpoints can be checked")
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        tensors[name] = torch.from_numpy(data[begin:end].view("<f4").reshape(entry["shape"]).copy())
    return tensors


@torch.no_grad()
def load_weights(model, tensors):
    """Every tensor of the checkpoint to its namesake; nothing may be left over on either side."""
    places = {name.removesuffix(".weight"): tensor for name, tensor in model.state_dict().items()}
    for name, tensor in tensors.items():
        stacked = name.endswith(("experts_in", "experts_out"))
        for key, part in [(f"{name}.{e}", part) for e, part in enumerate(tensor)] if stacked else [(name, tensor)]:
            place = places.pop(key, None)
            if place is None or place.shape != part.shape:
                raise Problem(f"the checkpoint's '{key}' {tuple(part.shape)} has no counterpart", "this is a bug")
            place.copy_(part)
    if places:
        raise Problem(f"the checkpoint lacks {', '.join(places)}", "this is a bug")


def read_split(folder):
    """All token ids of a split in shard order, and its end-of-document id."""
    manifest = json.loads((folder / "manifest.json").read_text())
    shards = [np.load(folder / shard["path"]) for shard in manifest["shards"]]
    return torch.from_numpy(np.concatenate(shards).astype(np.int64)), manifest["eos_token_id"]


@torch.no_grad()
def check(arguments):
    """Validation as `n train` ends with it: windows of S tokens in file order; ends of documents do not count."""
    folder = pathlib.Path(arguments.checkpoint)
    config = parse_config((folder / "config.toml").read_text(), MODEL_COVERED)
    model = LanguageModel(config)
    load_weights(model, read_safetensors(folder / "model.safetensors"))
    ids, end_of_document = read_split(pathlib.Path(arguments.data or config.data.path) / "valid")

    seq_len = config.data.seq_len
    num_windows = (len(ids) - 1) // seq_len
    if limit := lookup(config, "train.valid_seqs"):
        num_windows = min(num_windows, limit)
    inputs = ids[:num_windows * seq_len].view(-1, seq_len)
    targets = ids[1:num_windows * seq_len + 1].view(-1, seq_len)
    nats, num_targets = 0.0, 0
    for batch, batch_targets in zip(inputs.split(16), targets.split(16)):
        counted = batch_targets.flatten() != end_of_document
        losses = model(batch, batch_targets, reduction="none")
        nats += losses[counted].double().sum().item()
        num_targets += int(counted.sum())
    loss = nats / num_targets
    result = {"loss": loss, "tokens": num_targets}
    if arguments.loss is not None:
        result |= {"expected": arguments.loss, "difference": loss - arguments.loss}
        if not abs(result["difference"]) <= arguments.tolerance:
            print(json.dumps(result))
            raise Problem(f"the losses differ by more than {arguments.tolerance} nats",
                          "nmoe and torch_moe.py no longer compute the same model: find out which is wrong")
    return result


# ---- command line -------------------------------------------------------------------------------------------------


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    commands = parser.add_subparsers(dest="command", required=True)

    timing = commands.add_parser("time", help="time training steps of a configuration")
    timing.add_argument("config", help="nmoe configuration (TOML)")
    timing.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    timing.add_argument("--program", default=REPO / "build/cpu/n", help="the program `n`, which resolves it")
    timing.add_argument("--warmup", type=int, default=2, help="steps before")
    timing.add_argument("--steps", type=int, default=6, help="steps to time")
    timing.set_defaults(run=time_training)

    checking = commands.add_parser("check", help="validation loss of a checkpoint")
    checking.add_argument("checkpoint", help="a step_* folder")
    checking.add_argument("--data", help="prepared corpus, instead of the configuration's data.path")
    checking.add_argument("--loss", type=float, help="what `n train` printed; a larger difference is an error")
    checking.add_argument("--tolerance", type=float, default=1e-4, help="nats")
    checking.set_defaults(run=check)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    try:
        print(json.dumps(arguments.run(arguments)))
    except (Problem, OSError) as problem:
        message, remedy = problem.args if isinstance(problem, Problem) else (problem, "check the path")
        print(f"error: {message}\nremedy: {remedy}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
