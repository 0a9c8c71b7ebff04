#include "config/other_names.h"

#include <algorithm>
#include <iterator>

namespace nmoe {
namespace {

// Hugging Face's config.json and TrainingArguments, nanoGPT and nanochat, torchtitan, litgpt, Megatron-LM.
constexpr OtherNames kTable[] = {
    {"run.name", "run_name wandb_run_name job_name"},
    {"run.experiment", "wandb_project project"},
    {"run.dir", "out_dir output_dir dump_folder save_dir"},
    {"run.precision", "dtype torch_dtype mixed_precision"},
    {"run.threads", "num_threads n_threads"},
    {"run.seed", "random_seed"},
    {"model.vocab_size", "padded_vocab_size n_vocab"},
    {"model.dim", "d_model hidden_size hidden_dim n_embd embed_dim emb_dim embedding_dim model_dim"},
    {"model.num_layers", "n_layer n_layers num_hidden_layers"},
    {"model.num_heads", "n_head n_heads num_attention_heads"},
    {"model.num_dense_layers", "first_k_dense_replace n_dense_layers"},
    {"model.dense_dim", "intermediate_size ffn_dim d_ff ffn_hidden_size n_inner inter_dim mlp_dim"},
    {"model.activation", "hidden_act activation_function"},
    {"model.attention", "attention_type attn_type"},
    {"model.window", "sliding_window sliding_window_size"},
    {"model.max_positions", "max_position_embeddings n_positions"},
    {"model.norm_eps", "rms_norm_eps layer_norm_eps layernorm_epsilon"},
    {"model.tied_head", "tie_word_embeddings tie_embeddings weight_tying"},
    {"model.rope.theta", "rope_theta rope_base rotary_base"},
    {"model.gqa.num_kv_heads", "n_kv_heads n_kv_head num_key_value_heads num_query_groups n_query_groups"},
    {"model.gqa.head_dim", "head_size d_head"},
    {"model.mamba2.num_heads", "mamba_num_heads"},
    {"model.mamba2.head_dim", "mamba_head_dim mamba_d_head"},
    {"model.mamba2.state_dim", "ssm_state_size mamba_state_dim mamba_d_state"},
    {"model.mamba2.num_groups", "n_groups mamba_n_groups mamba_num_groups"},
    {"model.mamba2.conv_width", "conv_kernel mamba_d_conv"},
    {"model.mamba2.chunk", "mamba_chunk_size"},
    {"model.mamba2.step_min", "time_step_min mamba_dt_min"},
    {"model.mamba2.step_max", "time_step_max mamba_dt_max"},
    {"model.gated_deltanet.num_key_heads", "linear_num_key_heads"},
    {"model.gated_deltanet.num_value_heads", "linear_num_value_heads"},
    {"model.gated_deltanet.key_head_dim", "linear_key_head_dim"},
    {"model.gated_deltanet.value_head_dim", "linear_value_head_dim"},
    {"model.gated_deltanet.conv_width", "linear_conv_kernel_dim"},
    {"model.moe.num_experts", "n_experts n_expert n_routed_experts num_local_experts num_routed_experts"},
    {"model.moe.top_k", "num_experts_per_tok n_activated_experts moe_router_topk experts_per_token"},
    {"model.moe.expert_dim", "moe_intermediate_size moe_inter_dim moe_ffn_hidden_size"},
    {"model.moe.num_shared_experts", "n_shared_experts"},
    {"model.moe.score", "scoring_func score_func"},
    {"model.moe.num_groups", "n_group n_expert_groups"},
    {"model.moe.top_groups", "topk_group n_limited_groups"},
    {"model.moe.normalise_weights", "norm_topk_prob normalize_weights route_norm"},
    {"model.moe.routed_scale", "routed_scaling_factor route_scale"},
    {"model.moe.bias_rate", "load_balance_coeff bias_update_speed"},
    {"model.moe.balance_loss", "aux_loss_alpha router_aux_loss_coef moe_aux_loss_coeff"},
    {"model.moe.z_loss", "router_z_loss_coef moe_z_loss_coeff"},
    {"model.mtp.depth", "num_nextn_predict_layers mtp_num_layers"},
    {"model.mtp.loss_weight", "mtp_loss_scaling_factor"},
    {"model.init.from", "init_from pretrained load_checkpoint initial_checkpoint_dir"},
    {"model.init.std", "initializer_range init_method_std"},
    {"data.path", "dataset data_path dataset_path train_data"},
    {"data.seq_len", "block_size context_length max_seq_len max_seq_length seq_length sequence_length max_length"},
    {"optim.clip_norm", "grad_clip max_grad_norm clip_grad max_norm grad_clip_norm"},
    {"optim.lr", "learning_rate max_lr base_lr"},
    {"optim.matrices.weight_decay", "wd"},
    {"optim.adamw.beta1", "adam_beta1"},
    {"optim.adamw.beta2", "adam_beta2"},
    {"optim.adamw.eps", "adam_eps adam_epsilon"},
    {"optim.schedule.warmup", "warmup_steps warmup_iters lr_warmup_steps lr_warmup_iters num_warmup_steps"},
    {"optim.schedule.warmup", "warmup_ratio", "as a share: \"5%\""},
    {"optim.schedule.decay", "lr_decay_iters decay_steps decay_iters lr_decay_steps"},
    {"optim.schedule.shape", "lr_scheduler_type lr_decay_style decay_type"},
    {"optim.schedule.floor", "min_lr", "an absolute rate"},
    {"train.steps", "max_steps max_iters num_iterations train_iters num_steps total_steps training_steps"},
    {"train.tokens", "max_tokens total_tokens train_tokens training_tokens"},
    {"train.epochs", "num_train_epochs num_epochs max_epochs"},
    {"train.batch_seqs", "batch_size global_batch_size train_batch_size total_batch_size",
     "sequences of a whole optimizer step"},
    {"train.microbatch_seqs",
     "micro_batch_size device_batch_size local_batch_size per_device_train_batch_size gradient_accumulation_steps",
     "sequences of one forward and backward pass; train.batch_seqs divided by it and by the ranks is how many are "
     "summed"},
    {"train.recompute", "activation_checkpointing gradient_checkpointing activation_checkpoint recompute_granularity"},
    {"train.logit_z_loss", "z_loss_coef z_loss_coeff z_loss_weight z_loss_multiplier lm_head_z_loss"},
    {"train.log_every", "log_interval logging_steps log_freq"},
    {"train.valid_every", "eval_interval eval_every eval_steps val_every val_interval"},
    {"train.valid_seqs", "eval_iters eval_batches val_steps", "sequences"},
    {"parallel.ranks", "world_size num_gpus n_gpus nproc_per_node num_devices"},
    {"parallel.capacity_factor", "moe_expert_rank_capacity_factor moe_expert_capacity_factor",
     "rows of a rank, none of which are dropped"},
    {"parallel.bucket_bytes", "reduce_bucket_size bucket_cap_mb ddp_bucket_size", "bytes"},
    {"checkpoint.every", "save_interval save_steps save_every checkpoint_interval"},
    {"checkpoint.keep_last", "save_total_limit keep_latest_k"},
};

}  // namespace

std::span<const OtherNames> other_names() { return kTable; }

const OtherNames* find_other_name(std::string_view name) {
  const auto has_it = [name](const OtherNames& entry) {
    for (size_t begin = 0; begin < entry.names.size();) {
      const size_t end = std::min(entry.names.find(' ', begin), entry.names.size());
      if (entry.names.substr(begin, end - begin) == name) return true;
      begin = end + 1;
    }
    return false;
  };
  const auto* const found = std::ranges::find_if(kTable, has_it);
  return found == std::end(kTable) ? nullptr : found;
}

}  // namespace nmoe
