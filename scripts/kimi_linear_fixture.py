#!/usr/bin/env python3
"""Small kimi_linear models as Hugging Face folders with what they compute, for tests/hf.

    scripts/kimi_linear_fixture.py OUT_DIR

It needs the Python package `numpy` alone. OUT_DIR/VARIANT holds what scripts/hf_fixture.py's folders do; gradients are
named after the tensors of the files. transformers has no such type: the model is written from its formulas in float64
(reference_model.py), Kimi Delta Attention as the plain recurrence, token by token (arXiv 2510.26692, section 3).
"""

import numpy as np

from reference_model import (VOCAB, Value, attend, causal_convolution, chosen_experts, einsum, exp, linear, main_of,
                             mean_loss, power, rms_norm, routed, sigmoid, silu, softplus, stack, within)

KEY_NORM_EPS = LATENT_NORM_EPS = 1e-6

COMMON = dict(
    architectures=["KimiLinearForCausalLM"], model_type="kimi_linear", vocab_size=VOCAB, hidden_size=40,
    intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, head_dim=10,
    hidden_act="silu", model_max_length=256, rms_norm_eps=1e-3, tie_word_embeddings=False, rope_theta=10000.0,
    rope_scaling=None, mla_use_nope=True, q_lora_rank=None, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=6,
    v_head_dim=10,
    linear_attn_config=dict(num_heads=3, head_dim=8, short_conv_kernel_size=4, kda_layers=[1, 2, 4],
                            full_attn_layers=[3]),
    num_experts=6, num_experts_per_token=2, moe_intermediate_size=16, num_shared_experts=1,
    moe_router_activation_func="sigmoid", moe_renormalize=True, routed_scaling_factor=2.446, first_k_dense_replace=1,
    moe_layer_freq=1, use_grouped_topk=True, num_expert_group=1, topk_group=1, num_nextn_predict_layers=0,
    bos_token_id=1, eos_token_id=2, dtype="float32",
)
VARIANTS = {
    "kimi_linear": (COMMON, 40),
    "kimi_linear_bare": (
        COMMON
        | dict(
            num_hidden_layers=3, tie_word_embeddings=True, moe_renormalize=False, num_experts_per_token=1,
            num_shared_experts=0, first_k_dense_replace=0, routed_scaling_factor=1.5, qk_rope_head_dim=5,
            linear_attn_config=dict(num_heads=2, head_dim=12, short_conv_kernel_size=3, kda_layers=[2, 3],
                                    full_attn_layers=[1]),
        ),
        24,
    ),
}


def unit(x):
    return x * power((x * x).sum(-1) + KEY_NORM_EPS, -0.5)


def delta_attention(config, w, x):
    """One sequence [T, hidden]."""
    sizes, tokens = config["linear_attn_config"], x.data.shape[0]
    heads, size = sizes["num_heads"], sizes["head_dim"]

    def in_heads(rows):
        return rows.reshape(tokens, heads, size)

    q, k, v = (in_heads(stack(causal_convolution(linear(x, w[f"{name}_proj.weight"]), w[f"{name}_conv1d.weight"], None)))
               for name in "qkv")
    q, k = unit(q) * size**-0.5, unit(k)
    steps = softplus(linear(linear(x, w["f_a_proj.weight"]), w["f_b_proj.weight"]) + w["dt_bias"])
    decay = exp(in_heads(steps) * exp(w["A_log"].reshape(heads, 1)) * -1.0)
    beta = sigmoid(linear(x, w["b_proj.weight"]))
    state, out = Value(np.zeros((heads, size, size))), []
    for t in range(tokens):
        state = state * decay[t].reshape(heads, size, 1)
        delta = (v[t] + einsum("hkv,hk->hv", state, k[t]) * -1.0) * beta[t].reshape(heads, 1)
        state = state + einsum("hk,hv->hkv", k[t], delta)
        out.append(einsum("hkv,hk->hv", state, q[t]))
    gate = in_heads(linear(linear(x, w["g_a_proj.weight"]), w["g_b_proj.weight"]))
    gated = rms_norm(stack(out), w["o_norm.weight"], config["rms_norm_eps"]) * sigmoid(gate)
    return linear(gated.reshape(tokens, heads * size), w["o_proj.weight"])


def latent_attention(config, w, x):
    """Nothing rotates; a part of each key is one that all heads share."""
    heads, rank, tokens = config["num_attention_heads"], config["kv_lora_rank"], x.data.shape[0]
    own, shared, size = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    q = linear(x, w["q_proj.weight"]).reshape(tokens, heads, own + shared)
    joint = linear(x, w["kv_a_proj_with_mqa.weight"])
    latent = rms_norm(joint[:, :rank], w["kv_a_layernorm.weight"], LATENT_NORM_EPS)
    kv = linear(latent, w["kv_b_proj.weight"]).reshape(tokens, heads, own + size)
    shared_key = joint[:, rank:].reshape(tokens, 1, shared)[:, np.zeros(heads, dtype=int)]
    # Keys as two parts: the sum over both is the sum of the sums over each.
    left = np.concatenate([np.eye(own), np.zeros((own, shared))], 1)
    right = np.concatenate([np.zeros((shared, own)), np.eye(shared)], 1)
    k = einsum("thc,cd->thd", kv[:, :, :own], Value(left)) + einsum("thc,cd->thd", shared_key, Value(right))
    out = attend(q, k, kv[:, :, own:], (own + shared) ** -0.5)
    return linear(out.reshape(tokens, heads * size), w["o_proj.weight"])


def mlp(w, x, names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = (w[f"{name}.weight"] for name in names)
    return linear(silu(linear(x, gate)) * linear(x, up), down)


def experts(config, w, x, margins):
    scores = sigmoid(linear(x, w["gate.weight"]))
    bias = w["gate.e_score_correction_bias"].data
    top = config["num_experts_per_token"]
    chosen, margin = chosen_experts(dict(n_group=1, num_experts_per_tok=top), scores.data, bias)
    margins.append(margin)
    weights = scores[np.arange(x.data.shape[0])[:, None], chosen]
    if config["moe_renormalize"] and top > 1:
        weights = weights * power(weights.sum(-1) + 1e-20, -1.0)
    weights = weights * config["routed_scaling_factor"]
    out = routed(x, chosen, weights, lambda number, rows: mlp(within(w, f"experts.{number}."), rows, ("w1", "w3", "w2")))
    return out + mlp(within(w, "shared_experts."), x) if config["num_shared_experts"] else out


def compute(config, weights, ids, margins):
    """Logits [B, S, V] and the mean loss of ids [B, S + 1]."""
    table, eps = weights["model.embed_tokens.weight"], config["rms_norm_eps"]
    head = table if config["tie_word_embeddings"] else weights["lm_head.weight"]
    logits = []
    for sequence in ids:
        x = table[sequence[:-1]]
        for layer in range(config["num_hidden_layers"]):
            w = within(weights, f"model.layers.{layer}.")
            is_recurrent = layer + 1 in config["linear_attn_config"]["kda_layers"]
            mix = delta_attention if is_recurrent else latent_attention
            x = x + mix(config, within(w, "self_attn."), rms_norm(x, w["input_layernorm.weight"], eps))
            normed = rms_norm(x, w["post_attention_layernorm.weight"], eps)
            is_dense = layer < config["first_k_dense_replace"]
            x = x + (mlp(within(w, "mlp."), normed) if is_dense
                     else experts(config, within(w, "block_sparse_moe."), normed, margins))
        logits.append(linear(rms_norm(x, weights["model.norm.weight"], eps), head))
    return np.stack([rows.data for rows in logits]), mean_loss(logits, ids)


def shapes_of(config):
    hidden, sizes, heads = config["hidden_size"], config["linear_attn_config"], config["num_attention_heads"]
    shapes = {"model.embed_tokens.weight": (VOCAB, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCAB, hidden)

    def of_mlp(prefix, width, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = names
        return {f"{prefix}{gate}.weight": (width, hidden), f"{prefix}{up}.weight": (width, hidden),
                f"{prefix}{down}.weight": (hidden, width)}

    for layer in range(config["num_hidden_layers"]):
        of_layer = {f"{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        if layer + 1 in sizes["kda_layers"]:
            size, count = sizes["head_dim"], sizes["num_heads"]
            width = size * count
            mixer = {f"{name}_proj.weight": (width, hidden) for name in "qkv"}
            mixer |= {f"{name}_conv1d.weight": (width, 1, sizes["short_conv_kernel_size"]) for name in "qkv"}
            mixer |= {f"{name}_a_proj.weight": (size, hidden) for name in "fg"}
            mixer |= {f"{name}_b_proj.weight": (width, size) for name in "fg"}
            mixer |= {"b_proj.weight": (count, hidden), "A_log": (1, 1, count, 1), "dt_bias": (width,),
                      "o_norm.weight": (size,), "o_proj.weight": (hidden, width)}
        else:
            rank, own, shared = (config[k] for k in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"))
            mixer = {"q_proj.weight": (heads * (own + shared), hidden),
                     "kv_a_proj_with_mqa.weight": (rank + shared, hidden), "kv_a_layernorm.weight": (rank,),
                     "kv_b_proj.weight": (heads * (own + config["v_head_dim"]), rank),
                     "o_proj.weight": (hidden, heads * config["v_head_dim"])}
        of_layer |= {f"self_attn.{name}": shape for name, shape in mixer.items()}
        if layer < config["first_k_dense_replace"]:
            of_layer |= of_mlp("mlp.", config["intermediate_size"])
        else:
            block, inner, count = "block_sparse_moe.", config["moe_intermediate_size"], config["num_experts"]
            of_layer |= {f"{block}gate.weight": (count, hidden), f"{block}gate.e_score_correction_bias": (count,)}
            for expert in range(count):
                of_layer |= of_mlp(f"{block}experts.{expert}.", inner, ("w1", "w3", "w2"))
            if config["num_shared_experts"]:
                of_layer |= of_mlp(f"{block}shared_experts.", inner * config["num_shared_experts"])
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    return shapes


def random_value(name, shape, random):
    """Steps and decays over their whole ranges; norms near one; biases that change what is selected."""
    noise = random.standard_normal(shape)
    if name.endswith("A_log"):
        return np.log(random.uniform(1.0, 16.0, shape))
    if name.endswith("dt_bias"):
        return np.log(np.expm1(np.exp(random.uniform(np.log(1e-3), np.log(0.2), shape))))
    if name == "model.norm.weight":  # logits of order one where the head is the embedding, too
        return 0.2 * (1.0 + 0.2 * noise)
    if "norm" in name:
        return 1.0 + 0.2 * noise
    if name.endswith("bias"):
        return 0.2 * noise
    if name.endswith("embed_tokens.weight"):
        return noise
    if name.endswith("gate.weight"):
        return 2.0 * noise / shape[-1] ** 0.5
    # What layers add is smaller than what they read: rounding has the effect of first order.
    to_residual = name.endswith(("o_proj.weight", "down_proj.weight", "w2.weight"))
    return (0.4 if to_residual else 1.0) * noise / shape[-1] ** 0.5


if __name__ == "__main__":
    main_of(__doc__, VARIANTS, shapes_of, random_value, compute)
