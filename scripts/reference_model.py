"""Reference models in float64, for models that transformers computes otherwise or not at all: gradients by reverse
accumulation over a record of numpy operations, which are checked against central differences; the folders in which
tests/hf finds a model with what it computes. It needs the Python package `numpy` alone.
"""

import functools
import json
import pathlib
import struct
import sys

import numpy as np

NUM_SEQS = 2
VOCAB = 96
LEAST_MARGIN = 1e-4  # between scores of the last expert chosen and the first one not


class Value:
    """An array and how it was made: (value, function from this one's gradient to its) for each it was made of."""

    def __init__(self, data, made_of=()):
        self.data, self.made_of, self.grad = np.asarray(data, dtype=np.float64), made_of, None

    def __add__(self, other):
        other = value(other)
        return Value(self.data + other.data, [(self, lambda g: summed(g, self)), (other, lambda g: summed(g, other))])

    def __mul__(self, other):
        other = value(other)
        return Value(self.data * other.data, [(self, lambda g: summed(g * other.data, self)),
                                              (other, lambda g: summed(g * self.data, other))])

    def __getitem__(self, index):
        def back(g):
            full = np.zeros_like(self.data)
            np.add.at(full, index, g)
            return full

        return Value(self.data[index], [(self, back)])

    def reshape(self, *shape):
        return Value(self.data.reshape(shape), [(self, lambda g: g.reshape(self.data.shape))])

    def sum(self, axis):
        return Value(self.data.sum(axis, keepdims=True), [(self, lambda g: np.broadcast_to(g, self.data.shape))])


def value(x):
    return x if isinstance(x, Value) else Value(x)


def summed(gradient, of):
    """Over what was broadcast."""
    while gradient.ndim > of.data.ndim:
        gradient = gradient.sum(0)
    for axis, size in enumerate(of.data.shape):
        if size == 1 and gradient.shape[axis] != 1:
            gradient = gradient.sum(axis, keepdims=True)
    return gradient


def apply(x, function, derivative):
    return Value(function(x.data), [(x, lambda g: g * derivative(x.data))])


def logistic(x):
    return 1.0 / (1.0 + np.exp(-x))


def exp(x):
    return apply(x, np.exp, np.exp)


def sigmoid(x):
    return apply(x, logistic, lambda d: logistic(d) * (1.0 - logistic(d)))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return apply(x, lambda d: np.logaddexp(0.0, d), logistic)


def power(x, exponent):
    return apply(x, lambda d: d**exponent, lambda d: exponent * d ** (exponent - 1.0))


def einsum(rule, a, b):
    inputs, out = rule.split("->")
    left, right = inputs.split(",")
    return Value(np.einsum(rule, a.data, b.data),
                 [(a, lambda g: np.einsum(f"{out},{right}->{left}", g, b.data)),
                  (b, lambda g: np.einsum(f"{out},{left}->{right}", g, a.data))])


def stack(rows):
    return Value(np.stack([row.data for row in rows]), [(row, lambda g, i=i: g[i]) for i, row in enumerate(rows)])


def backward(result):
    order, seen = [], set()
    todo = [(result, False)]
    while todo:
        node, done = todo.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            todo.append((node, True))
            todo.extend((parent, False) for parent, _ in node.made_of)
    result.grad = np.ones_like(result.data)
    for node in reversed(order):
        for parent, back in node.made_of:
            gradient = back(node.grad)
            parent.grad = gradient if parent.grad is None else parent.grad + gradient


def linear(x, weight):
    return einsum("ti,oi->to", x, weight)


def rms_norm(x, gain, eps):
    size = x.data.shape[-1]
    return x * power((x * x).sum(-1) * (1.0 / size) + eps, -0.5) * gain


def softmax(scores):
    weights = exp(scores + -scores.data.max(-1, keepdims=True))
    return weights * power(weights.sum(-1), -1.0)


def causal_convolution(x, weight, bias):
    """SiLU of a depthwise convolution; rows x [T, channels], weight [channels, 1, taps], bias [channels] or None."""
    tokens, taps = x.data.shape[0], weight.data.shape[2]
    convolved = []
    for t in range(tokens):
        row = value(0.0) if bias is None else bias
        for k in range(taps):
            if t - (taps - 1) + k >= 0:
                row = row + weight[:, 0, k] * x[t - (taps - 1) + k]
        convolved.append(silu(row))
    return convolved


def attend(q, k, v, scale):
    """Causal, of [T, heads, size] each."""
    tokens = q.data.shape[0]
    scores = einsum("thd,shd->hts", q, k) * scale + np.triu(np.full((tokens, tokens), -np.inf), 1)
    return einsum("hts,shd->thd", softmax(scores), v)


def within(w, prefix):
    return {name.removeprefix(prefix): tensor for name, tensor in w.items() if name.startswith(prefix)}


def chosen_experts(config, scores, bias):
    """[T, k], by biased scores of the groups whose two best are best; and by how much at least it was decided."""
    biased = scores + bias
    tokens, experts = biased.shape
    groups, margin = config["n_group"], np.inf
    if groups > 1:
        best = np.sort(biased.reshape(tokens, groups, -1))[:, :, -2:].sum(-1)
        order = np.sort(best)[:, ::-1]
        margin = (order[:, config["topk_group"] - 1] - order[:, config["topk_group"]]).min()
        kept = np.argsort(-best)[:, : config["topk_group"]]
        inside = (np.arange(experts)[None, None] // (experts // groups) == kept[:, :, None]).any(1)
        biased = np.where(inside, biased, -np.inf)
    order = np.argsort(-biased)
    top = config["num_experts_per_tok"]
    ranked = np.take_along_axis(biased, order, 1)
    return order[:, :top], min(margin, (ranked[:, top - 1] - ranked[:, top]).min())


def routed(x, chosen, weights, expert):
    """Of each row the sum of its experts, expert(number, rows), by weights [T, k]."""
    rows = []
    for t in range(x.data.shape[0]):
        row = value(0.0)
        for slot, number in enumerate(chosen[t]):
            row = row + expert(number, x[t : t + 1]) * weights[t, slot]
        rows.append(row[0])
    return stack(rows)


def mean_loss(rows_of_sequences, ids):
    """Of logits [T, V] of each sequence of ids [B, T + 1]."""
    total = Value(0.0)
    for rows, sequence in zip(rows_of_sequences, ids):
        shifted = exp(rows + -rows.data.max(-1, keepdims=True))
        logs = apply(shifted.sum(-1), np.log, lambda d: 1.0 / d) + rows.data.max(-1, keepdims=True)
        picked = rows[np.arange(len(sequence) - 1), sequence[1:]].reshape(-1, 1)
        total = total + (logs + picked * -1.0).sum(0).reshape(1)
    return total * (1.0 / (ids.size - len(ids)))


def write_tensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in sorted(tensors.items()):
        raw = np.ascontiguousarray(tensor).tobytes()
        kind = {"float32": "F32", "int32": "I32"}[str(tensor.dtype)]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def check_gradients(compute, stored, ids, random):
    """A derivative along a random direction of each kind of tensor, against central differences."""
    scale = 1e-6
    weights = {name: Value(tensor) for name, tensor in stored.items()}
    backward(compute(weights, ids, [])[1])
    for name, tensor in weights.items():
        if tensor.grad is None or ".experts." in name and not name.endswith((".0.up_proj.weight", ".0.w3.weight")):
            continue
        direction = random.standard_normal(tensor.data.shape)
        sides = []
        for sign in (1.0, -1.0):
            moved = weights | {name: Value(tensor.data + sign * scale * direction)}
            sides.append(compute(moved, ids, [])[1].data[0])
        found, wanted = (sides[0] - sides[1]) / (2.0 * scale), (tensor.grad * direction).sum()
        if abs(found - wanted) > 1e-6 * (1e-2 + abs(wanted)):
            raise SystemExit(f"{name}: {wanted} by the record, {found} by differences")


def make_fixture(folder, config, seq_len, shapes, random_value, compute):
    """A folder with a model of tensors of these shapes, and what compute(weights, ids, margins) makes of it: its logits
    and its loss. `margins` is a list to which it adds how closely experts were chosen."""
    for seed in range(1, 100):
        random = np.random.default_rng(seed)
        stored = {name: random_value(name, shape, random).astype(np.float32)
                  for name, shape in sorted(shapes.items())}
        weights = {name: Value(tensor) for name, tensor in stored.items()}
        ids, margins = random.integers(0, VOCAB, (NUM_SEQS, seq_len + 1)), []
        logits, loss = compute(weights, ids, margins)
        if min(margins) > LEAST_MARGIN:
            break
    check_gradients(compute, stored, ids[:1, :12], random)
    backward(loss)
    expected = {"input_ids": ids.astype(np.int32), "logits": logits.astype(np.float32), "loss": loss.data.astype(np.float32)}
    for name, tensor in weights.items():
        if name.startswith("mtp.") or name.endswith("e_score_correction_bias"):
            continue
        gradient = tensor.grad if tensor.grad is not None else np.zeros_like(tensor.data)  # of an expert without tokens
        expected["grad." + name] = gradient.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_tensors(folder / "model.safetensors", stored)
    write_tensors(folder / "expected.safetensors", expected)
    print(f"{folder}: loss {loss.data[0]:.6f}, seed {seed}")


def main_of(usage, variants, shapes_of, random_value, compute):
    """What a script of fixtures does: a folder of each of `variants` {name: (config, tokens)}, in the folder that it was
    given. compute as make_fixture's, with the config in front."""
    if len(sys.argv) != 2:
        raise SystemExit(usage)
    for name, (config, seq_len) in variants.items():
        make_fixture(pathlib.Path(sys.argv[1]) / name, config, seq_len, shapes_of(config), random_value,
                     functools.partial(compute, config))
