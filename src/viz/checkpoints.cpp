#include "viz/checkpoints.h"

#include <exception>

#include "base/failure.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"

namespace nmoe {

std::vector<CheckpointRow> checkpoints_of(const fs::path& run_dir, const RunRow& run) {
  std::vector<CheckpointRow> rows;
  if (!is_name_below(run.name)) return rows;  // a database that others made names no folder elsewhere
  for (const fs::path& path : list_checkpoints(run_dir / "checkpoints" / run.name)) {
    CheckpointRow row{.step = checkpoint_step(path).value_or(0)};
    try {
      const fs::path file = path / "manifest.json";
      const CheckpointManifest manifest = parse_manifest(read_file(file), file);
      if (manifest.info.run_id != run.id) continue;
      row.tokens = manifest.info.tokens;
      row.weights_sha256 = manifest.weights_sha256;
      row.created_at = manifest.info.created_at;
      for (const ManifestFile& part : manifest.files) row.bytes += static_cast<int64_t>(part.bytes);
    } catch (const std::exception& exception) {
      row.fault = as_error(exception).what();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace nmoe
