// How this process was started: alone, or as one of several by a launcher.
//
// A process of a run is a *domain*: it drives an equal, contiguous share of the run's ranks as threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace nmoe {

struct Launch {
  int64_t process = 0;        // of this one, from 0
  int64_t num_processes = 1;  // of the run
  int64_t local_process = 0;  // among those of this host
  // Where process 0 is met; "" and 0 for a process that is alone.
  std::string address;
  int port = 0;
  std::string secret;  // that the processes share; "": none, and then they meet on one host only

  bool is_alone() const { return num_processes == 1; }
};

// The value of an environment variable; null: not set.
using Environment = std::function<const char*(const char* variable)>;
const char* process_environment(const char* variable);

// Reads, wherever they are set,
//   WORLD_SIZE, RANK, LOCAL_RANK            processes of the run, this one's number, its number on its host; else
//   SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID   what srun says
//   MASTER_ADDR, MASTER_PORT                where process 0 is met; with SLURM, SLURM_LAUNCH_NODE_IPADDR may be the
//   address NMOE_SECRET, or NMOE_SECRET_FILE        the secret, or a file with it (a newline at its end does not count)
// An empty variable is one that is not set. Errors (usage) name the variable.
Launch read_launch(const Environment& environment = process_environment);

// How many of `ranks` this process drives. Error (usage) where they cannot be shared equally.
int64_t ranks_of_process(const Launch& launch, int64_t ranks);

// What CUDA_VISIBLE_DEVICES has to be for a process that drives `ranks` GPUs: of those it lets the processes of a host
// see, the share of this one by its number there. Where it lets this one see as many as it drives, or fewer than all
// would need, these are its own. Unset: as many as there are, by number.
std::string devices_of_process(const Launch& launch, int64_t ranks,
                               const Environment& environment = process_environment);

}  // namespace nmoe
