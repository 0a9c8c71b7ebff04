#!/usr/bin/env python3
"""Small qwen3_next models as Hugging Face folders with what they compute, for tests/hf.

    scripts/qwen3_next_fixture.py OUT_DIR

It needs the Python package `numpy` alone. OUT_DIR/VARIANT holds what scripts/hf_fixture.py's folders do; gradients are
named after the tensors of the files. The model is written from its formulas in float64 (reference_model.py): Gated
DeltaNet as the plain recurrence, token by token (arXiv 2412.06464, section 3).
"""

import numpy as np

from reference_model import (VOCAB, Value, attend, causal_convolution, chosen_experts, einsum, exp, linear, main_of,
                             mean_loss, power, rms_norm, routed, sigmoid, silu, softmax, softplus, stack, within)

KEY_NORM_EPS = 1e-6

COMMON = dict(
    architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", vocab_size=VOCAB, hidden_size=40,
    intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    hidden_act="silu", max_position_embeddings=256, rms_norm_eps=1e-3, attention_bias=False, tie_word_embeddings=False,
    linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=12, linear_num_key_heads=2,
    linear_num_value_heads=4, decoder_sparse_step=1, mlp_only_layers=[2], moe_intermediate_size=16,
    shared_expert_intermediate_size=24, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
    output_router_logits=False, router_aux_loss_coef=0.001, use_sliding_window=False, bos_token_id=1, eos_token_id=2,
    torch_dtype="float32",
)
VARIANTS = {
    "qwen3_next": (COMMON | dict(full_attention_interval=2, partial_rotary_factor=0.25, rope_theta=10000.0,
                                 rope_scaling=None), 40),
    "qwen3_next_mtp": (
        COMMON
        | dict(
            num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
            rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5),
            mlp_only_layers=[], num_experts=8, num_experts_per_tok=3, norm_topk_prob=False, tie_word_embeddings=True,
            linear_num_value_heads=6, linear_conv_kernel_dim=3, num_nextn_predict_layers=1,
        ),
        24,
    ),
}


def kinds_of(config):
    every = config.get("full_attention_interval")
    return config.get("layer_types") or ["linear_attention" if (i + 1) % every else "full_attention"
                                         for i in range(config["num_hidden_layers"])]


def zero_centred_norm(config, x, weight):
    return rms_norm(x, weight + 1.0, config["rms_norm_eps"])


def unit(x):
    return x * power((x * x).sum(-1) + KEY_NORM_EPS, -0.5)


def delta_net(config, w, x):
    """One sequence [T, hidden]. Both projections have the rows of a key head, then those of the next."""
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, size, tokens, shared = config["linear_key_head_dim"], config["linear_value_head_dim"], x.data.shape[0], heads // groups
    wide = linear(x, w["in_proj_qkvz.weight"]).reshape(tokens, groups, 2 * key + 2 * shared * size)
    narrow = linear(x, w["in_proj_ba.weight"]).reshape(tokens, groups, 2 * shared)
    q, k = wide[:, :, :key], wide[:, :, key : 2 * key]
    v, z = wide[:, :, 2 * key : 2 * key + shared * size], wide[:, :, 2 * key + shared * size :]
    b, a = narrow[:, :, :shared].reshape(tokens, heads), narrow[:, :, shared:].reshape(tokens, heads)
    ends = np.cumsum([0, groups * key, groups * key, heads * size])
    weight = w["conv1d.weight"]
    q, k, v = (stack(causal_convolution(rows.reshape(tokens, end - begin), weight[begin:end], None))
               for rows, begin, end in zip((q, k, v), ends[:-1], ends[1:]))
    of_head = np.arange(heads) // shared
    q = (unit(q.reshape(tokens, groups, key)) * key**-0.5)[:, of_head]
    k, v = unit(k.reshape(tokens, groups, key))[:, of_head], v.reshape(tokens, heads, size)
    decay = exp(softplus(a + w["dt_bias"]) * exp(w["A_log"]) * -1.0)
    beta = sigmoid(b)
    state, out = Value(np.zeros((heads, key, size))), []
    for t in range(tokens):
        state = state * decay[t].reshape(heads, 1, 1)
        delta = (v[t] + einsum("hkv,hk->hv", state, k[t]) * -1.0) * beta[t].reshape(heads, 1)
        state = state + einsum("hk,hv->hkv", k[t], delta)
        out.append(einsum("hkv,hk->hv", state, q[t]))
    normed = rms_norm(stack(out), w["norm.weight"], config["rms_norm_eps"])
    return linear((normed * silu(z.reshape(tokens, heads, size))).reshape(tokens, heads * size), w["out_proj.weight"])


def rotated(config, x):
    """Of each head [T, heads, size] the first values, those of its first half with those of its second."""
    rope = config.get("rope_parameters") or config
    size = config["head_dim"]
    turned = int(size * rope["partial_rotary_factor"])
    half = turned // 2
    angles = np.arange(x.data.shape[0])[:, None] * rope["rope_theta"] ** (-2.0 * np.arange(half) / turned)
    cosines, sines = np.ones((len(angles), 1, size)), np.zeros((len(angles), 1, size))
    partner = np.eye(size)
    for first, sign in ((0, -1.0), (half, 1.0)):
        cosines[:, 0, first : first + half] = np.cos(angles)
        sines[:, 0, first : first + half] = sign * np.sin(angles)
    partner[:turned, :turned] = np.roll(partner[:turned, :turned], half, 0)
    return x * Value(cosines) + einsum("thc,cd->thd", x, Value(partner)) * Value(sines)


def attention(config, w, x):
    heads, kv_heads, size = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    tokens = x.data.shape[0]
    both = linear(x, w["q_proj.weight"]).reshape(tokens, heads, 2 * size)
    q, gate = both[:, :, :size], both[:, :, size:]
    k, v = (linear(x, w[f"{name}_proj.weight"]).reshape(tokens, kv_heads, size) for name in "kv")
    q = rotated(config, zero_centred_norm(config, q, w["q_norm.weight"]))
    k = rotated(config, zero_centred_norm(config, k, w["k_norm.weight"]))
    of_head = np.arange(heads) // (heads // kv_heads)
    gated = attend(q, k[:, of_head], v[:, of_head], size**-0.5) * sigmoid(gate)
    return linear(gated.reshape(tokens, heads * size), w["o_proj.weight"])


def mlp(w, x):
    return linear(silu(linear(x, w["gate_proj.weight"])) * linear(x, w["up_proj.weight"]), w["down_proj.weight"])


def experts(config, w, x, margins):
    scores = softmax(linear(x, w["gate.weight"]))
    chosen, margin = chosen_experts(config | dict(n_group=1), scores.data, 0.0)
    margins.append(margin)
    weights = scores[np.arange(x.data.shape[0])[:, None], chosen]
    if config["norm_topk_prob"]:
        weights = weights * power(weights.sum(-1), -1.0)
    out = routed(x, chosen, weights, lambda number, rows: mlp(within(w, f"experts.{number}."), rows))
    return out + mlp(within(w, "shared_expert."), x) * sigmoid(linear(x, w["shared_expert_gate.weight"]))


def compute(config, weights, ids, margins):
    """Logits [B, S, V] and the mean loss of ids [B, S + 1]."""
    table = weights["model.embed_tokens.weight"]
    head = table if config["tie_word_embeddings"] else weights["lm_head.weight"]
    logits = []
    for sequence in ids:
        x = table[sequence[:-1]]
        for layer, kind in enumerate(kinds_of(config)):
            w = within(weights, f"model.layers.{layer}.")
            mix, name = (delta_net, "linear_attn.") if kind == "linear_attention" else (attention, "self_attn.")
            x = x + mix(config, within(w, name), zero_centred_norm(config, x, w["input_layernorm.weight"]))
            normed, inside = zero_centred_norm(config, x, w["post_attention_layernorm.weight"]), within(w, "mlp.")
            is_dense = layer in config["mlp_only_layers"]
            x = x + (mlp(inside, normed) if is_dense else experts(config, inside, normed, margins))
        logits.append(linear(zero_centred_norm(config, x, weights["model.norm.weight"]), head))
    return np.stack([rows.data for rows in logits]), mean_loss(logits, ids)


def shapes_of_layer(config, kind, is_dense):
    hidden, inner, count = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]

    def of_mlp(name, width):
        return {f"mlp.{name}{k}_proj.weight": (width, hidden) for k in ("gate", "up")} | {
            f"mlp.{name}down_proj.weight": (hidden, width)}

    shapes = {f"{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    if kind == "linear_attention":
        heads = config["linear_num_value_heads"]
        keys, values = config["linear_num_key_heads"] * config["linear_key_head_dim"], heads * config["linear_value_head_dim"]
        mixer = {"in_proj_qkvz.weight": (2 * keys + 2 * values, hidden), "in_proj_ba.weight": (2 * heads, hidden),
                 "conv1d.weight": (2 * keys + values, 1, config["linear_conv_kernel_dim"]), "dt_bias": (heads,),
                 "A_log": (heads,), "norm.weight": (config["linear_value_head_dim"],), "out_proj.weight": (hidden, values)}
        shapes |= {f"linear_attn.{name}": shape for name, shape in mixer.items()}
    else:
        size = config["head_dim"]
        q, kv = (config[k] * size for k in ("num_attention_heads", "num_key_value_heads"))
        mixer = {"q_proj.weight": (2 * q, hidden), "k_proj.weight": (kv, hidden), "v_proj.weight": (kv, hidden),
                 "o_proj.weight": (hidden, q), "q_norm.weight": (size,), "k_norm.weight": (size,)}
        shapes |= {f"self_attn.{name}": shape for name, shape in mixer.items()}
    if is_dense:
        return shapes | of_mlp("", config["intermediate_size"])
    shapes |= {"mlp.gate.weight": (count, hidden), "mlp.shared_expert_gate.weight": (1, hidden)}
    shapes |= of_mlp("shared_expert.", config["shared_expert_intermediate_size"])
    for expert in range(count):
        shapes |= of_mlp(f"experts.{expert}.", inner)
    return shapes


def shapes_of(config):
    hidden = config["hidden_size"]
    shapes = {"model.embed_tokens.weight": (VOCAB, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCAB, hidden)
    layers = [(f"model.layers.{i}.", kind, i in config["mlp_only_layers"]) for i, kind in enumerate(kinds_of(config))]
    if config.get("num_nextn_predict_layers"):
        layers.append(("mtp.layers.0.", "full_attention", False))
        shapes |= {f"mtp.{name}.weight": (hidden,) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
        shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
    for prefix, kind, is_dense in layers:
        shapes |= {prefix + name: shape for name, shape in shapes_of_layer(config, kind, is_dense).items()}
    return shapes


def random_value(name, shape, random):
    """Steps and decays over their whole ranges; norms near those of random weights."""
    noise = random.standard_normal(shape)
    if name.endswith("A_log"):
        return np.log(random.uniform(0.5, 16.0, shape))
    if name.endswith("dt_bias"):
        return np.log(np.expm1(np.exp(random.uniform(np.log(1e-4), np.log(0.5), shape))))
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.2 * noise
    if name == "model.norm.weight":  # logits of order one where the head is the embedding, too
        return -0.8 + 0.05 * noise
    if "norm" in name:
        return 0.2 * noise
    if name.endswith("embed_tokens.weight"):
        return noise
    if name.endswith("mlp.gate.weight"):
        return 2.0 * noise / shape[-1] ** 0.5
    return noise / shape[-1] ** 0.5


if __name__ == "__main__":
    main_of(__doc__, VARIANTS, shapes_of, random_value, compute)
