#include "base/error.h"
#include "ops/contracts/checks.h"
#include "ops/contracts/checks/tensors.h"

namespace nmoe {

namespace {

void check_rows(const Tensor& ids, const Tensor& table, const Tensor& rows) {
  NMOE_CHECK(ids.dtype() == DType::kI32 && ids.shape().rank() == 1 && table.shape().rank() == 2 &&
                 rows.shape() == Shape({ids.dim(0), table.dim(1)}) && is_act(rows.dtype()),
             "embedding of ids {} {} in a table {}, rows {} {}", dtype_name(ids.dtype()), ids.shape(), table.shape(),
             dtype_name(rows.dtype()), rows.shape());
}

}  // namespace

void check(const EmbeddingForward& args) {
  check_rows(args.ids, args.table, args.y);
  NMOE_CHECK(args.table.dtype() == args.y.dtype(), "a table of {}, rows of {}", dtype_name(args.table.dtype()),
             dtype_name(args.y.dtype()));
}

void check(const EmbeddingBackward& args) {
  check_rows(args.ids, args.dtable, args.dy);
  NMOE_CHECK(is_stat(args.dtable.dtype()), "the gradient of a table is {}", dtype_name(args.dtable.dtype()));
}

}  // namespace nmoe
