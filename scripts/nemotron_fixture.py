#!/usr/bin/env python3
"""Small nemotron_h models as Hugging Face folders with what they compute, for tests/hf.

    scripts/nemotron_fixture.py OUT_DIR

It needs the Python package `numpy` alone. OUT_DIR/VARIANT holds what scripts/hf_fixture.py's folders do; gradients are
named after the tensors of the files.

transformers' own computation is no reference here: without mamba_ssm's kernels it is wrong beyond one chunk, and clamps
steps at time_step_min. This is the model as it was trained, written from its formulas in float64 (reference_model.py):
Mamba-2 as the plain recurrence, token by token (arXiv 2405.21060, section 2).
"""

import numpy as np

from reference_model import (VOCAB, Value, apply, attend, causal_convolution, chosen_experts, einsum, exp, linear,
                             main_of, mean_loss, power, rms_norm, routed, sigmoid, silu, softplus, stack, within)

COMMON = dict(
    architectures=["NemotronHForCausalLM"], model_type="nemotron_h", vocab_size=VOCAB, hidden_size=48,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=40, mamba_num_heads=4,
    mamba_head_dim=8, ssm_state_size=12, n_groups=2, conv_kernel=4, chunk_size=16, n_routed_experts=6,
    num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1, moe_shared_expert_intermediate_size=24,
    n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, mlp_hidden_act="relu2",
    mamba_hidden_act="silu", layer_norm_epsilon=1e-3, attention_bias=False, mlp_bias=False, use_bias=False,
    mamba_proj_bias=False, use_conv_bias=True, tie_word_embeddings=False, max_position_embeddings=256, bos_token_id=1,
    eos_token_id=2, time_step_min=0.001, time_step_max=0.1, time_step_floor=1e-4, expand=2, rope_theta=10000,
    partial_rotary_factor=1.0, torch_dtype="float32",
)
VARIANTS = {
    # Chunks of 16 in sequences of 40: what is carried from chunk to chunk counts.
    "nemotron": (COMMON | dict(hybrid_override_pattern="MEM*E-", num_hidden_layers=6), 40),
    "nemotron_latent": (
        COMMON
        | dict(
            layers_block_type=["linear_attention", "moe", "linear_attention", "full_attention", "moe"],
            moe_latent_size=20, n_group=2, topk_group=1, n_routed_experts=8, norm_topk_prob=False,
            routed_scaling_factor=1.5, attention_bias=True, tie_word_embeddings=True, conv_kernel=3, chunk_size=8,
            n_groups=4, mamba_head_dim=12, num_nextn_predict_layers=1,
            mtp_layers_block_type=["full_attention", "moe"], time_step_limit=[0.0, {"__float__": "Infinity"}],
        ),
        24,
    ),
}
LETTERS = {"M": "linear_attention", "*": "full_attention", "E": "moe", "-": "mlp"}


def relu_squared(x):
    return apply(x, lambda d: np.maximum(d, 0.0) ** 2, lambda d: 2.0 * np.maximum(d, 0.0))


def kinds_of(config):
    listed = config.get("layers_block_type")
    return listed or [LETTERS[letter] for letter in config["hybrid_override_pattern"]]


def mamba2(config, w, x):
    """One sequence [T, hidden]."""
    heads, size, state, groups = (config[k] for k in ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups"))
    width, shared = heads * size, groups * state
    tokens = x.data.shape[0]
    projected = linear(x, w["in_proj.weight"])
    z, xbc, dt = projected[:, :width], projected[:, width : 2 * width + 2 * shared], projected[:, 2 * width + 2 * shared :]
    convolved = causal_convolution(xbc, w["conv1d.weight"], w["conv1d.bias"])
    step = softplus(dt + w["dt_bias"])
    decay = exp(step * exp(w["A_log"]) * -1.0)
    of_head = np.arange(heads) // (heads // groups)
    held, out = Value(np.zeros((heads, size, state))), []
    for t in range(tokens):
        xs = convolved[t][:width].reshape(heads, size)
        b = convolved[t][width : width + shared].reshape(groups, state)[of_head]
        c = convolved[t][width + shared :].reshape(groups, state)[of_head]
        held = held * decay[t].reshape(heads, 1, 1) + einsum("hp,hn->hpn", xs * step[t].reshape(heads, 1), b)
        out.append((einsum("hpn,hn->hp", held, c) + xs * w["D"].reshape(heads, 1)).reshape(width))
    gated = (stack(out) * silu(z)).reshape(tokens, groups, width // groups)
    normed = rms_norm(gated, w["norm.weight"].reshape(groups, width // groups), config["layer_norm_epsilon"])
    return linear(normed.reshape(tokens, width), w["out_proj.weight"])


def attention(config, w, x):
    heads, kv_heads, size = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    tokens = x.data.shape[0]
    biased = config["attention_bias"]

    def project(name, rows):
        y = linear(rows, w[f"{name}_proj.weight"])
        return y + w[f"{name}_proj.bias"] if biased else y

    of_head = np.arange(heads) // (heads // kv_heads)
    q = project("q", x).reshape(tokens, heads, size)
    k, v = (project(name, x).reshape(tokens, kv_heads, size)[:, of_head] for name in "kv")
    return project("o", attend(q, k, v, size**-0.5).reshape(tokens, heads * size))


def mlp(w, x):
    return linear(relu_squared(linear(x, w["up_proj.weight"])), w["down_proj.weight"])


def experts(config, w, x, margins):
    scores = sigmoid(linear(x, w["gate.weight"]))
    chosen, margin = chosen_experts(config, scores.data, w["gate.e_score_correction_bias"].data)
    margins.append(margin)
    tokens = x.data.shape[0]
    weights = scores[np.arange(tokens)[:, None], chosen]
    if config["norm_topk_prob"]:
        weights = weights * power(weights.sum(-1) + 1e-20, -1.0)
    weights = weights * config["routed_scaling_factor"]
    latent = config.get("moe_latent_size") is not None
    inside = linear(x, w["fc1_latent_proj.weight"]) if latent else x
    out = routed(inside, chosen, weights, lambda number, rows: mlp(within(w, f"experts.{number}."), rows))
    if latent:
        out = linear(out, w["fc2_latent_proj.weight"])
    return out + mlp(within(w, "shared_experts."), x)


def compute(config, weights, ids, margins):
    """Logits [B, S, V] and the mean loss of ids [B, S + 1]."""
    mixers = {"linear_attention": mamba2, "full_attention": attention,
              "moe": lambda c, w, x: experts(c, w, x, margins), "mlp": lambda _, w, x: mlp(w, x)}
    table = weights["backbone.embeddings.weight"]
    head = table if config["tie_word_embeddings"] else weights["lm_head.weight"]
    logits = []
    for sequence in ids:
        x = table[sequence[:-1]]
        for layer, kind in enumerate(kinds_of(config)):
            of_layer = within(weights, f"backbone.layers.{layer}.")
            normed = rms_norm(x, of_layer["norm.weight"], config["layer_norm_epsilon"])
            x = x + mixers[kind](config, within(of_layer, "mixer."), normed)
        logits.append(linear(rms_norm(x, weights["backbone.norm_f.weight"], config["layer_norm_epsilon"]), head))
    return np.stack([rows.data for rows in logits]), mean_loss(logits, ids)


def shapes_of_block(config, kind):
    hidden, inner = config["hidden_size"], config["mamba_num_heads"] * config["mamba_head_dim"]
    shared, heads = config["n_groups"] * config["ssm_state_size"], config["mamba_num_heads"]
    if kind == "linear_attention":
        channels = inner + 2 * shared
        return {"in_proj.weight": (inner + channels + heads, hidden), "conv1d.weight": (channels, 1, config["conv_kernel"]),
                "conv1d.bias": (channels,), "dt_bias": (heads,), "A_log": (heads,), "D": (heads,),
                "norm.weight": (inner,), "out_proj.weight": (hidden, inner)}
    if kind == "full_attention":
        q, kv = (config[k] * config["head_dim"] for k in ("num_attention_heads", "num_key_value_heads"))
        shapes = {"q_proj.weight": (q, hidden), "k_proj.weight": (kv, hidden), "v_proj.weight": (kv, hidden),
                  "o_proj.weight": (hidden, q)}
        if config["attention_bias"]:
            shapes |= {"q_proj.bias": (q,), "k_proj.bias": (kv,), "v_proj.bias": (kv,), "o_proj.bias": (hidden,)}
        return shapes
    if kind == "mlp":
        return {"up_proj.weight": (config["intermediate_size"], hidden),
                "down_proj.weight": (hidden, config["intermediate_size"])}
    latent, count = config.get("moe_latent_size"), config["n_routed_experts"]
    width, inside, beside = latent or hidden, config["moe_intermediate_size"], config["moe_shared_expert_intermediate_size"]
    shapes = {"gate.weight": (count, hidden), "gate.e_score_correction_bias": (count,),
              "shared_experts.up_proj.weight": (beside, hidden), "shared_experts.down_proj.weight": (hidden, beside)}
    if latent:
        shapes |= {"fc1_latent_proj.weight": (latent, hidden), "fc2_latent_proj.weight": (hidden, latent)}
    for expert in range(count):
        shapes[f"experts.{expert}.up_proj.weight"] = (inside, width)
        shapes[f"experts.{expert}.down_proj.weight"] = (width, inside)
    return shapes


def shapes_of(config):
    hidden = config["hidden_size"]
    shapes = {"backbone.embeddings.weight": (VOCAB, hidden), "backbone.norm_f.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCAB, hidden)
    blocks = [(f"backbone.layers.{layer}.", kind) for layer, kind in enumerate(kinds_of(config))]
    if config.get("num_nextn_predict_layers"):
        module = config["mtp_layers_block_type"]
        blocks += [(f"mtp.layers.{layer}.", kind) for layer, kind in enumerate(module)]
        shapes |= {f"mtp.layers.0.{name}.weight": (hidden,) for name in ("enorm", "hnorm")}
        shapes["mtp.layers.0.eh_proj.weight"] = (hidden, 2 * hidden)
        shapes[f"mtp.layers.{len(module) - 1}.final_layernorm.weight"] = (hidden,)
    for prefix, kind in blocks:
        shapes[prefix + "norm.weight"] = (hidden,)
        shapes |= {f"{prefix}mixer.{name}": shape for name, shape in shapes_of_block(config, kind).items()}
    return shapes


def random_value(name, shape, random):
    """Steps, decays and scores over their whole ranges; norms near one; biases that change what is selected."""
    noise = random.standard_normal(shape)
    if name.endswith("A_log"):
        return np.log(random.uniform(1.0, 16.0, shape))
    if name.endswith("dt_bias"):
        return np.log(np.expm1(np.exp(random.uniform(np.log(1e-4), np.log(0.5), shape))))
    if name.endswith("norm_f.weight"):  # logits of order one where the head is the embedding, too
        return 0.2 * (1.0 + 0.2 * noise)
    if name.endswith((".D", "norm.weight")):
        return 1.0 + 0.2 * noise
    if name.endswith("bias"):
        return 0.2 * noise
    if name.endswith("embeddings.weight"):
        return noise
    if name.endswith("gate.weight"):
        return 2.0 * noise / shape[-1] ** 0.5
    return noise / shape[-1] ** 0.5


if __name__ == "__main__":
    main_of(__doc__, VARIANTS, shapes_of, random_value, compute)
