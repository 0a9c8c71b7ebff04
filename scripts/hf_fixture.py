#!/usr/bin/env python3
"""Small models as Hugging Face folders with what transformers computes from them, for tests/hf.

    scripts/hf_fixture.py OUT_DIR --all
    scripts/hf_fixture.py OUT_DIR --variant dsv3_groups --variant qwen3

It needs the Python packages `torch`, `transformers` (5.17 was used) and `safetensors`, no accelerator and no network.
The same packages on the same kind of processor give the same files. OUT_DIR/VARIANT holds

config.json, model*.safetensors   as save_pretrained writes them: one tensor for each expert's matrices
expected.safetensors              input_ids      [B, S + 1] int32
                                  logits         [B, S, V] float32, of the first S tokens
                                  loss           [1] float32: mean cross-entropy of the B * S next tokens, in nats
                                  grad.NAME      float32, dloss/dNAME by torch's names; the experts of a layer are one
                                                 tensor there: gate_up_proj [E, 2I, H], down_proj [E, H, I]

Expectations are computed in float32 from the folder as transformers loads it. No router decides by a hair: the experts
that tokens go to stay the same when all weights are moved by a 1e-5th.

dsv3_fp8's matrices (not embedding, head, norms, routers) are float8 e4m3 in blocks of 128 x 128 with one float32 scale
each, NAME_scale_inv, as DeepSeek publishes them. Their meaning is value * scale rounded to bfloat16, which is what
DeepSeek's conversion script makes of them; the expectation is computed from these. qwen3_fp8's scales are bfloat16.

gpt_oss_mxfp4's experts are MXFP4 as OpenAI publishes them: of gate_up_proj and down_proj [E, in, out], NAME_blocks
[E, out, in / 32, 16] and NAME_scales [E, out, in / 32], uint8. Their meaning is what transformers decodes.

    scripts/hf_fixture.py OUT_DIR --bf16

adds to every folder that is there bf16.json: how far transformers itself is from expected.safetensors when it computes
in bfloat16 (on a GPU, where there is one), {"loss": nats, "logits": relative norm, "gradients": relative norm over all
of them}. Folders that only nmoe reads (FP8, kimi_k2) get none.
"""

import argparse
import json
import pathlib
import shutil
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

NUM_SEQS = 2
VOCAB = 96
MTP_LAYERS = 1
FP8_BLOCK = 128
FP8_MAX = 448.0  # the largest finite float8 e4m3
MXFP4_BLOCK = 32
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by code; codes from 8 on are negative

COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=48,
    moe_intermediate_size=16,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_experts_per_tok=2,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,  # not that of the latents' norms, which is fixed at 1e-6
    tie_word_embeddings=False,
    bos_token_id=0,
    eos_token_id=1,
)
MLA = dict(
    num_key_value_heads=4,
    q_lora_rank=20,
    kv_lora_rank=24,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
    n_routed_experts=8,
    n_shared_experts=1,
    first_k_dense_replace=1,
)
DSV3 = COMMON | MLA | dict(n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5)
DSV2 = COMMON | MLA | dict(norm_topk_prob=False, topk_method="greedy", routed_scaling_factor=1.0)
QWEN3 = COMMON | dict(
    num_key_value_heads=2, head_dim=24, num_experts=8, norm_topk_prob=True, mlp_only_layers=[], num_hidden_layers=2
)
# Of the types below, width and depth are less: their files are many. Some types have a padding token by default, whose
# embedding torch gives no gradient.
SMALL = COMMON | dict(hidden_size=48, num_hidden_layers=2, num_key_value_heads=2, pad_token_id=None)
SMALL_DENSE = {key: value for key, value in SMALL.items() if not key.startswith(("moe", "num_experts"))}
GLM = SMALL | dict(
    head_dim=16,
    n_routed_experts=8,
    n_shared_experts=1,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    norm_topk_prob=True,
    routed_scaling_factor=1.5,
    attention_bias=True,
    partial_rotary_factor=0.5,
)


def plain_rope(theta=10000.0):
    return dict(rope_type="default", rope_theta=theta)


def scaled_rope(kind, theta, **further):
    return dict(rope_type=kind, rope_theta=theta) | further


# Wavelengths on both sides of the ramp, and on it.
LLAMA3_ROPE = scaled_rope(
    "llama3", 100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)


def yarn(mscale):
    """The ramp ends inside the head's 4 pairs: one is kept, one between, two are slowed."""
    return dict(
        rope_type="yarn",
        rope_theta=100.0,
        factor=4.0,
        original_max_position_embeddings=32,
        beta_fast=4.0,
        beta_slow=1.0,
        mscale=mscale,
        mscale_all_dim=mscale,
    )


GPT_OSS = SMALL_DENSE | dict(
    head_dim=16, num_local_experts=8, num_experts_per_tok=2, intermediate_size=16, sliding_window=8,
    layer_types=["sliding_attention", "full_attention"],
    rope_parameters=scaled_rope(
        "yarn", 100.0, factor=4.0, beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=32, truncate=False
    ),
)


class Variant:
    """config: keyword arguments of the configuration. seq_len: S. bf16: parameters are saved in bfloat16 (router biases
    stay float32). shard_size: bytes of a file of weights at most; 0: one file. mtp: weights of DeepSeek's multi-token
    module are added, which transformers ignores. fp8: dtype of the scales, None: none; see above. mxfp4: whether
    experts are. model_type: what config.json says in the end. extra: keys of releases that mean nothing to transformers, written at the end."""

    def __init__(
        self, family, config, seq_len=24, bf16=False, shard_size=0, mtp=False, fp8=None, mxfp4=False, model_type=None,
        extra=None,
    ):
        self.family, self.config, self.seq_len = family, {"rope_parameters": plain_rope()} | config, seq_len
        self.bf16, self.shard_size, self.mtp, self.fp8, self.model_type = bf16, shard_size, mtp, fp8, model_type
        self.mxfp4, self.extra = mxfp4, extra or {}


VARIANTS = {
    "dsv3_groups": Variant(
        "deepseek_v3",
        DSV3 | dict(num_hidden_layers=2, n_routed_experts=16, n_group=4, topk_group=2, q_lora_rank=None),
    ),
    "dsv3_yarn": Variant("deepseek_v3", DSV3 | dict(rope_parameters=yarn(1.0)), seq_len=48),
    "dsv3_half_split": Variant("deepseek_v3", DSV3 | dict(rope_interleave=False, norm_topk_prob=False)),
    "dsv3_mtp": Variant("deepseek_v3", DSV3 | dict(num_hidden_layers=2), mtp=True),
    "dsv2_lite": Variant(
        "deepseek_v2",
        DSV2 | dict(num_hidden_layers=2, q_lora_rank=None, n_shared_experts=2, rope_parameters=yarn(0.707)),
        seq_len=48,
    ),
    "dsv2_groups": Variant(
        "deepseek_v2",
        DSV2
        | dict(
            num_hidden_layers=2,
            n_routed_experts=16,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            num_experts_per_tok=3,
            routed_scaling_factor=16.0,
        ),
    ),
    "qwen3": Variant("qwen3_moe", QWEN3 | dict(rope_parameters=plain_rope(1e6))),
    "qwen3_tied": Variant(
        "qwen3_moe",
        QWEN3 | dict(num_hidden_layers=3, tie_word_embeddings=True, norm_topk_prob=False, mlp_only_layers=[0]),
    ),
    "kimi": Variant("deepseek_v3", DSV3 | dict(rope_parameters=plain_rope(50000.0)), model_type="kimi_k2"),
    # Sizes that are no multiples of the block.
    "dsv3_fp8": Variant(
        "deepseek_v3",
        DSV3
        | dict(
            num_hidden_layers=2,
            hidden_size=136,
            intermediate_size=140,
            num_attention_heads=2,
            num_key_value_heads=2,
            n_routed_experts=4,
        ),
        bf16=True,
        fp8=torch.float32,
    ),
    "dsv3_bf16_sharded": Variant("deepseek_v3", DSV3, bf16=True, shard_size=60_000),
    "qwen3_dense": Variant("qwen3", SMALL_DENSE | dict(head_dim=16, tie_word_embeddings=True, attention_bias=True)),
    "qwen3_bias": Variant("qwen3_moe", SMALL | dict(head_dim=16, num_experts=8, norm_topk_prob=True, attention_bias=True)),
    "llama3": Variant("llama", SMALL_DENSE | dict(head_dim=12, rope_parameters=LLAMA3_ROPE), seq_len=48),
    "llama_linear": Variant(
        "llama",
        SMALL_DENSE
        | dict(
            head_dim=16,
            attention_bias=True,
            tie_word_embeddings=True,
            rope_parameters=scaled_rope("linear", 100.0, factor=4.0),
        ),
    ),
    "mixtral": Variant("mixtral", SMALL_DENSE | dict(num_local_experts=8, num_experts_per_tok=2, intermediate_size=16)),
    "olmoe": Variant(
        "olmoe",
        SMALL_DENSE | dict(num_experts=8, num_experts_per_tok=2, intermediate_size=16, norm_topk_prob=False),
    ),
    "glm4_groups": Variant(
        "glm4_moe",
        GLM | dict(use_qk_norm=True, n_group=2, topk_group=1, rope_parameters=plain_rope() | dict(partial_rotary_factor=0.5)),
    ),
    "glm4_mtp": Variant(
        "glm4_moe",
        GLM | dict(use_qk_norm=False, rope_parameters=plain_rope() | dict(partial_rotary_factor=0.5)),
        mtp=True,
    ),
    "glm4_lite": Variant(
        "glm4_moe_lite",
        SMALL | MLA | dict(n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.8),
    ),
    "qwen2_moe": Variant(
        "qwen2_moe",
        SMALL
        | dict(num_experts=8, shared_expert_intermediate_size=24, norm_topk_prob=False, decoder_sparse_step=1, qkv_bias=True),
    ),
    "minimax": Variant(
        "minimax_m2",
        SMALL_DENSE
        | dict(
            head_dim=16,
            num_local_experts=8,
            num_experts_per_tok=2,
            intermediate_size=16,
            rotary_dim=8,
            use_qk_norm=True,
            rope_parameters=plain_rope() | dict(partial_rotary_factor=0.5),
        ),
    ),
    "ernie": Variant(
        "ernie4_5_moe",
        SMALL_DENSE
        | dict(
            moe_num_experts=8,
            moe_k=2,
            moe_intermediate_size=16,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
            moe_layer_interval=1,
        ),
    ),
    "dots1": Variant(
        "dots1",
        SMALL
        | dict(
            head_dim=16,
            n_routed_experts=8,
            n_shared_experts=1,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
        ),
    ),
    "gpt_oss": Variant("gpt_oss", GPT_OSS, seq_len=32),
}

# Other groupings and depths: what a type's keys may say beyond what its releases say.
VARIANTS |= {
    "qwen3_fp8": Variant(
        "qwen3_moe",
        SMALL | dict(hidden_size=136, head_dim=16, num_experts=4, norm_topk_prob=True, moe_intermediate_size=24),
        bf16=True,
        fp8=torch.bfloat16,
        extra=dict(use_qk_norm=True, qkv_bias=False, shared_expert_intermediate_size=0),
    ),
    "qwen3_between": Variant(
        "qwen3_moe",
        SMALL
        | dict(
            num_hidden_layers=4, head_dim=8, num_key_value_heads=1, num_experts=6, num_experts_per_tok=3,
            norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[3], tie_word_embeddings=True,
        ),
    ),
    "qwen2_windows": Variant(
        "qwen2_moe",
        SMALL
        | dict(
            num_hidden_layers=3, num_experts=5, num_experts_per_tok=2, shared_expert_intermediate_size=16,
            norm_topk_prob=True, qkv_bias=False, mlp_only_layers=[0], use_sliding_window=True, sliding_window=7,
            layer_types=["sliding_attention", "full_attention", "full_attention"],
        ),
    ),
    "qwen3_windows": Variant(
        "qwen3",
        SMALL_DENSE
        | dict(
            num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3, head_dim=8, use_sliding_window=True,
            sliding_window=5, layer_types=["full_attention", "sliding_attention", "full_attention"],
        ),
    ),
    "mixtral_one_kv": Variant(
        "mixtral",
        SMALL_DENSE
        | dict(
            num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, num_local_experts=5,
            num_experts_per_tok=3, intermediate_size=12, tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE,
        ),
        seq_len=48,
    ),
    "olmoe_grouped": Variant(
        "olmoe",
        SMALL_DENSE
        | dict(
            num_attention_heads=6, num_key_value_heads=3, num_experts=7, num_experts_per_tok=4, intermediate_size=12,
            norm_topk_prob=True, attention_bias=True,
        ),
    ),
    "glm4_deep": Variant(
        "glm4_moe",
        GLM
        | dict(
            num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=3, first_k_dense_replace=2,
            n_shared_experts=2, n_routed_experts=12, n_group=3, topk_group=2, num_experts_per_tok=3,
            norm_topk_prob=False, use_qk_norm=True,
            attention_bias=False, rope_parameters=plain_rope(1e6) | dict(partial_rotary_factor=0.25),
        ),
    ),
    "minimax_whole": Variant(
        "minimax_m2",
        SMALL_DENSE
        | dict(
            num_hidden_layers=3, head_dim=8, num_key_value_heads=4, num_local_experts=6, num_experts_per_tok=3,
            intermediate_size=12, rotary_dim=4,
        ),
    ),
    "ernie_between": Variant(
        "ernie4_5_moe",
        SMALL_DENSE
        | dict(
            num_hidden_layers=5, num_key_value_heads=1, moe_num_experts=6, moe_k=3, moe_intermediate_size=12,
            moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_end_index=3, moe_layer_interval=2,
            tie_word_embeddings=True,
        ),
    ),
    "dots1_flat": Variant(
        "dots1",
        SMALL
        | dict(
            num_hidden_layers=3, head_dim=8, num_key_value_heads=1, n_routed_experts=6, n_shared_experts=2, n_group=1,
            topk_group=1, first_k_dense_replace=0, norm_topk_prob=False, routed_scaling_factor=1.0, attention_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    "mixtral_window": Variant(
        "mixtral",
        SMALL_DENSE | dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=12, sliding_window=6),
    ),
    "qwen3_window": Variant(
        "qwen3_moe",
        SMALL
        | dict(
            head_dim=8, num_experts=4, norm_topk_prob=True, use_sliding_window=True, sliding_window=6, max_window_layers=1
        ),
    ),
    "gpt_oss_deep": Variant("gpt_oss",
        GPT_OSS | dict(
            num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3, head_dim=8, num_local_experts=5,
            num_experts_per_tok=3, intermediate_size=12, sliding_window=5,
            layer_types=["full_attention", "sliding_attention", "sliding_attention"]), seq_len=32),
    "gpt_oss_mxfp4": Variant("gpt_oss",
        GPT_OSS | dict(hidden_size=64, num_key_value_heads=1, num_local_experts=4, intermediate_size=32),
        seq_len=32, bf16=True, mxfp4=True),
    "lite_between": Variant(
        "glm4_moe_lite",
        SMALL
        | MLA
        | dict(
            num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=None, n_shared_experts=2,
            n_group=2, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0,
            mlp_layer_types=["dense", "sparse", "dense"],
        ),
    ),
}


class NearTie(Exception):
    pass


def make_config(variant):
    config = transformers.AutoConfig.for_model(variant.family, **variant.config)
    if variant.family in ("deepseek_v3", "glm4_moe"):
        config.num_nextn_predict_layers = MTP_LAYERS if variant.mtp else 0
    return config


def random_value(name, shape, generator):
    """Logits, scores and gate weights of order one; norms near one; biases that change what is selected."""
    noise = torch.randn(shape, generator=generator)
    if name.endswith("gate_up_proj_bias"):  # some are beyond what is clamped
        return 4.0 * noise
    if name.endswith("bias"):
        return 0.2 * noise
    if name.endswith("sinks"):
        return noise
    if name.endswith("norm.weight"):
        return 1.0 + 0.2 * noise
    if name.endswith("embed_tokens.weight"):
        return noise
    if name.endswith((".mlp.gate.weight", ".mlp.router.weight", ".block_sparse_moe.gate.weight")):
        return 2.0 * noise / shape[-1] ** 0.5
    return noise / shape[-1] ** 0.5


def make_model(variant, generator):
    model = transformers.AutoModelForCausalLM.from_config(make_config(variant)).float()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            parameter.copy_(random_value(name, parameter.shape, generator))
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(random_value(name, buffer.shape, generator))
    if variant.bf16:
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return model


def load(folder, dtype):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    model.config._experts_implementation = "eager"
    return model.eval(), info


def load_as_float32(folder):
    model, info = load(folder, torch.float32)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            raise SystemExit(f"{folder}: {kind}: {sorted(info[kind])}")
    return model


class RecordedChoices(TorchDispatchMode):
    """What every top-k chooses meanwhile, each row sorted: routers are all that have any."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.topk.default:
            self.found.append(result[1].sort(dim=-1).values)
        return result


def selections(model, input_ids):
    """Which experts, and groups of them, each token goes to in each layer."""
    with torch.no_grad(), RecordedChoices() as choices:
        model(input_ids=input_ids, use_cache=False)
    return choices.found


def check_margins(model, input_ids, generator):
    before = selections(model, input_ids)
    kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0 + 1e-5 * torch.randn(parameter.shape, generator=generator))
    after = selections(model, input_ids)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(kept[name])
    if not all(torch.equal(one, other) for one, other in zip(before, after, strict=True)):
        raise NearTie


def compute(model, ids):
    """What OUT_DIR/VARIANT/expected.safetensors holds, of ids [B, S + 1]."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
    loss.backward()
    tensors = {"input_ids": ids.to(torch.int32), "logits": logits.detach(), "loss": loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        if name.endswith("e_score_correction_bias"):  # only chooses
            continue
        if parameter.grad is None:
            raise SystemExit(f"{name} has no gradient")
        tensors["grad." + name] = parameter.grad
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise SystemExit(f"{name} is not finite")
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def expectation(folder, seq_len, generator):
    model = load_as_float32(folder)
    ids = torch.randint(0, VOCAB, (NUM_SEQS, seq_len + 1), generator=generator)
    check_margins(model, ids[:, :-1], generator)
    try:
        return compute(model, ids)
    except SystemExit as problem:
        raise SystemExit(f"{folder}: {problem}") from None


def write_weights(tensors, folder):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=2) + "\n")


def per_block(scale, shape):
    """A block's scale at each of its elements."""
    rows = scale.float().repeat_interleave(FP8_BLOCK, 0)[: shape[0]]
    return rows.repeat_interleave(FP8_BLOCK, 1)[:, : shape[1]]


def quantise(weight, scale_dtype):
    weight = weight.float()
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % FP8_BLOCK, 0, -rows % FP8_BLOCK))
    blocks = padded.reshape(padded.shape[0] // FP8_BLOCK, FP8_BLOCK, padded.shape[1] // FP8_BLOCK, FP8_BLOCK)
    scale = (blocks.abs().amax(dim=(1, 3)) / FP8_MAX).to(scale_dtype)
    return (weight / per_block(scale, weight.shape)).to(torch.float8_e4m3fn), scale


def has_fp8(name):
    return name.endswith(("_proj.weight", "_proj_with_mqa.weight"))


def fp8_weights(weights, scale_dtype):
    """The weights as fp8, and what these mean in bfloat16."""
    quantised, meaning = {}, {}
    for name, weight in weights.items():
        quantised[name] = meaning[name] = weight
        if has_fp8(name):
            quantised[name], scale = quantise(weight, scale_dtype)
            quantised[name + "_scale_inv"] = scale
            meaning[name] = (quantised[name].float() * per_block(scale, weight.shape)).to(torch.bfloat16)
    return quantised, meaning


def quantise_mxfp4(weight):
    """Blocks and scales of [E, in, out]: a block's largest magnitude has the largest exponent that e2m1 has."""
    blocks = weight.float().transpose(1, 2).unflatten(-1, (-1, MXFP4_BLOCK))
    exponent = blocks.abs().amax(dim=-1).log2().floor() - 2.0
    scaled = blocks * torch.exp2(-exponent)[..., None]
    codes = (scaled.abs()[..., None] - torch.tensor(E2M1)).abs().argmin(dim=-1) + 8 * (scaled < 0)
    return (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8), (exponent + 127).to(torch.uint8)


def mxfp4_weights(weights):
    """The weights with experts as mxfp4, and what these mean in bfloat16."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    quantised, meaning = {}, {}
    for name, weight in weights.items():
        if name.endswith((".gate_up_proj", ".down_proj")):
            blocks, scales = quantise_mxfp4(weight)
            quantised[name + "_blocks"], quantised[name + "_scales"] = blocks, scales
            meaning[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
        else:
            quantised[name] = meaning[name] = weight
    return quantised, meaning


def mtp_weights(weights, num_layers, generator):
    """A module behind the last layer: a block like it, norms, a projection, copies of embedding and head."""
    last, module = f"model.layers.{num_layers - 1}.", f"model.layers.{num_layers}."
    embedding = weights["model.embed_tokens.weight"]
    width = embedding.shape[1]
    extra = {module + "embed_tokens.weight": embedding.clone(),
             module + "shared_head.head.weight": weights["lm_head.weight"].clone()}
    shapes = {module + name: (width,) for name in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight")}
    shapes[module + "eh_proj.weight"] = (width, 2 * width)
    for name, weight in weights.items():
        if name.startswith(last):
            shapes[module + name.removeprefix(last)] = tuple(weight.shape)
    for name, shape in sorted(shapes.items()):
        extra[name] = random_value(name, shape, generator)
    return extra


def write_variant(variant, folder, seed):
    generator = torch.Generator().manual_seed(seed)
    model = make_model(variant, generator)
    if variant.shard_size:
        model.save_pretrained(folder, max_shard_size=variant.shard_size)
    else:
        model.save_pretrained(folder)

    if variant.fp8:
        quantised, meaning = fp8_weights(load_file(folder / "model.safetensors"), variant.fp8)
        write_weights(meaning, folder)
        expected = expectation(folder, variant.seq_len, generator)
        write_weights(quantised, folder)
        edit_config(folder, quantization_config=dict(
            quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[FP8_BLOCK, FP8_BLOCK]))
    elif variant.mxfp4:
        quantised, meaning = mxfp4_weights(load_file(folder / "model.safetensors"))
        write_weights(meaning, folder)
        expected = expectation(folder, variant.seq_len, generator)
        write_weights(quantised, folder)
        edit_config(folder, quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]))
    else:
        expected = expectation(folder, variant.seq_len, generator)
    if variant.mtp:
        weights = load_file(folder / "model.safetensors")
        write_weights(weights | mtp_weights(weights, model.config.num_hidden_layers, generator), folder)
    if variant.model_type:
        edit_config(folder, model_type=variant.model_type)
    if variant.extra:
        edit_config(folder, **variant.extra)
    save_file(expected, folder / "expected.safetensors")
    return expected["loss"].item()


def make_fixture(name, out_dir):
    for seed in range(100):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch) / name
            try:
                loss = write_variant(VARIANTS[name], folder, seed)
            except NearTie:
                continue
            shutil.rmtree(out_dir / name, ignore_errors=True)
            shutil.copytree(folder, out_dir / name)
        files = [path for path in (out_dir / name).iterdir() if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        print(f"{name}: seed {seed}, loss {loss:.6f}, {len(files)} files, {size / 1024:.0f} KiB", flush=True)
        return
    raise SystemExit(f"{name}: a router decides by a hair whatever the seed")


def relative_norm(pairs):
    """Of the difference of all pairs (computed, expected)."""
    difference = sum(((a.double().cpu() - b.double()) ** 2).sum().item() for a, b in pairs)
    return (difference / sum((b.double() ** 2).sum().item() for _, b in pairs)) ** 0.5


def add_bf16_distance(folder):
    config = json.loads((folder / "config.json").read_text())
    if "quantization_config" in config or config["model_type"] == "kimi_k2":
        return
    expected = load_file(folder / "expected.safetensors")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, _ = load(folder, torch.bfloat16)
    found = compute(model.to(device), expected["input_ids"].to(torch.int64).to(device))
    gradients = [(found[name], expected[name]) for name in expected if name.startswith("grad.")]
    distance = dict(loss=abs(found["loss"].item() - expected["loss"].item()),
                    logits=relative_norm([(found["logits"], expected["logits"])]), gradients=relative_norm(gradients))
    rounded = {key: float(f"{value:.4g}") for key, value in distance.items()}
    (folder / "bf16.json").write_text(json.dumps(rounded) + "\n")
    print(f"{folder.name}: bf16 on {device} is off by {distance}", flush=True)


def main():
    parser = argparse.ArgumentParser(description="writes small Hugging Face models with what transformers computes")
    parser.add_argument("out_dir", type=pathlib.Path)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--variant", action="append", choices=sorted(VARIANTS))
    choice.add_argument("--all", action="store_true")
    choice.add_argument("--bf16", action="store_true")
    arguments = parser.parse_args()

    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    arguments.out_dir.mkdir(parents=True, exist_ok=True)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    if arguments.bf16:
        for expected in sorted(arguments.out_dir.glob("*/expected.safetensors")):
            add_bf16_distance(expected.parent)
        return
    for name in arguments.variant or VARIANTS:
        make_fixture(name, arguments.out_dir)


if __name__ == "__main__":
    main()
