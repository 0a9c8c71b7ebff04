#include "config/templates.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace nmoe {
namespace {

struct Template {
  std::string_view name;
  std::string_view toml;
};

// NOTE: each stands for itself, so that a user reads one file from top to bottom.
constexpr Template kTemplates[] = {
    {"tiny",
     R"(# DeepSeek-V3's shape as small as makes sense, to try everything: 2 M parameters beside embedding and head, 150 steps, a
# minute on two idle cores (docs/first-hour.md). For a model worth using, begin with mla-moe. docs/config.md explains every
# key. n export writes it in Hugging Face's format, as deepseek_v3.

[run]
name = "tiny"               # runs/checkpoints/tiny
# device = "cuda"           # one GPU

[model]
dim = 128
num_layers = 4
num_heads = 4
num_dense_layers = 1
dense_dim = 384             # of the dense layer: some (top_k + 1) * expert_dim
attention = "mla"

[model.mla]
q_lora_rank = 0             # above 0: queries are compressed too, as in larger models
kv_lora_rank = 64           # all that is cached of a position, with the rotated key
qk_nope_head_dim = 32
qk_rope_head_dim = 16
v_head_dim = 32

[model.moe]
num_experts = 16
top_k = 4
expert_dim = 64             # fine-grained: many narrow experts
num_shared_experts = 1
bias_rate = 0.005           # how fast the selection's bias evens out the experts' loads

[data]
path = "data/mine"          # what `n prep ... -o data/mine` wrote
seq_len = 256

[optim]
lr = 2e-3                   # of all groups that have none of their own
matrices = { optimizer = "muon", lr = 4e-3 }
experts = { optimizer = "muon", lr = 4e-3 }

[optim.schedule]            # shares of train.steps, which alone says how long a run is
warmup = "10%"
hold = "40%"
decay = "50%"

[train]
steps = 150
batch_seqs = 8              # sequences of a step
valid_every = 50

[checkpoint]
every = 50
)"},
    {"dense",
     R"(# A dense model of 6 M parameters beside embedding and head: grouped-query attention, AdamW for all weights.
# docs/config.md explains every key. It stays in nmoe: for n export, begin with mla-moe.

[run]
name = "dense"              # runs/checkpoints/dense
# device = "cuda"           # one GPU; then raise model.dim, model.num_layers and train.batch_seqs

[model]
dim = 256                   # width; num_heads * gqa.head_dim is usual
num_layers = 8
num_heads = 8
dense_dim = 768             # hidden width of the MLPs, some 8/3 of dim
attention = "gqa"

[model.gqa]
num_kv_heads = 2
head_dim = 32
qk_norm = true

[data]
path = "data/mine"          # what `n prep ... -o data/mine` wrote
seq_len = 512

[optim]
lr = 1e-3                   # of all weights; [optim.matrices] and the like can have their own

[optim.schedule]            # shares of train.steps, which alone says how long a run is
warmup = "5%"
hold = "50%"
decay = "45%"

[train]
steps = 1000
batch_seqs = 16             # sequences of a step
valid_every = 100

[checkpoint]
every = 250
)"},
    {"moe",
     R"(# A mixture of experts: 18 M parameters beside embedding and head, of which a token uses 4 M. Grouped-query attention, one
# dense layer, then 32 experts of which each token goes to 4; Muon for matrices and experts. docs/config.md explains every key.
# It stays in nmoe: for n export, begin with mla-moe.

[run]
name = "moe"                # runs/checkpoints/moe
# device = "cuda"           # one GPU; then raise model.dim, model.num_layers and train.batch_seqs

[model]
dim = 256                   # width; num_heads * gqa.head_dim is usual
num_layers = 6
num_heads = 8
num_dense_layers = 1
dense_dim = 768             # of the dense layer: some (top_k + 1) * expert_dim
attention = "gqa"

[model.gqa]
num_kv_heads = 2
head_dim = 32
qk_norm = true

[model.moe]
num_experts = 32
top_k = 4
expert_dim = 128            # fine-grained: many narrow experts
num_shared_experts = 1
bias_rate = 0.005           # how fast the selection's bias evens out the experts' loads

[data]
path = "data/mine"          # what `n prep ... -o data/mine` wrote
seq_len = 512

[optim]
lr = 2e-3                   # of all groups that have none of their own
matrices = { optimizer = "muon", lr = 4e-3 }
experts = { optimizer = "muon", lr = 4e-3 }

[optim.schedule]            # shares of train.steps, which alone says how long a run is
warmup = "5%"
hold = "50%"
decay = "45%"

[train]
steps = 1000
batch_seqs = 16             # sequences of a step
valid_every = 100

[checkpoint]
every = 250
)"},
    {"mla-moe",
     R"(# DeepSeek-V3's shape in miniature: 18 M parameters beside embedding and head, of which a token uses 4 M. Latent attention,
# one dense layer, then 32 experts of which each token goes to 4; Muon for matrices and experts. docs/config.md explains
# every key. n export writes it in Hugging Face's format, as deepseek_v3.

[run]
name = "mla-moe"            # runs/checkpoints/mla-moe
# device = "cuda"           # one GPU; then raise model.dim, model.num_layers and train.batch_seqs

[model]
dim = 256
num_layers = 6
num_heads = 8
num_dense_layers = 1
dense_dim = 768             # of the dense layer: some (top_k + 1) * expert_dim
attention = "mla"

[model.mla]
q_lora_rank = 0             # above 0: queries are compressed too, as in larger models
kv_lora_rank = 64           # all that is cached of a position, with the rotated key
qk_nope_head_dim = 32
qk_rope_head_dim = 16
v_head_dim = 32

[model.moe]
num_experts = 32
top_k = 4
expert_dim = 128            # fine-grained: many narrow experts
num_shared_experts = 1
bias_rate = 0.005           # how fast the selection's bias evens out the experts' loads

[data]
path = "data/mine"          # what `n prep ... -o data/mine` wrote
seq_len = 512

[optim]
lr = 2e-3                   # of all groups that have none of their own
matrices = { optimizer = "muon", lr = 4e-3 }
experts = { optimizer = "muon", lr = 4e-3 }

[optim.schedule]            # shares of train.steps, which alone says how long a run is
warmup = "5%"
hold = "50%"
decay = "45%"

[train]
steps = 1000
batch_seqs = 16             # sequences of a step
valid_every = 100

[checkpoint]
every = 250
)"},
};

}  // namespace

std::vector<std::string> config_template_names() {
  std::vector<std::string> names;
  for (const Template& entry : kTemplates) names.emplace_back(entry.name);
  return names;
}

std::string_view config_template(std::string_view name) {
  const auto* const found = std::ranges::find(kTemplates, name, &Template::name);
  NMOE_CHECK(found != std::end(kTemplates), "no template {}", name);
  return found->toml;
}

}  // namespace nmoe
