// EplRouteIds: sorts ids of a table's rows by who has these rows.
#include <cstdint>
#include <string>
#include <vector>

#include "op_helpers.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplRouteIds")
    .Input("ids: T")
    .Output("sorted: T")
    .Output("counts: int64")
    .Output("places: int32")
    .Attr("T: {int32, int64}")
    .Attr("rows: int >= 1")
    .Attr("shards: int >= 1")
    .Attr("unique: bool = true")
    .Attr("what: string = ''")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      int shards;
      TF_RETURN_IF_ERROR(c->GetAttr("shards", &shards));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Vector(shards));
      c->set_output(2, c->input(0));
      return tf::Status();
    })
    .Doc(R"doc(
Sorts ids by the shard that has their row of a table. Where it does not divide, the first shards have a row more.

ids: any shape, each in [0, rows).
sorted: those of shard 0, of shard 1 and so on, each shard's in the order of their first appearance.
counts: how many of them each shard has.
places: for each of ids where in `sorted` it is.
rows: of the table.
shards: that have them.
unique: whether an id that is there several times is once in `sorted`.
what: what error messages call the lookup; default: the node's name.
)doc");

// Which shard has a row.
class Owners {
 public:
  Owners(tf::int64 rows, tf::int64 shards)
      : least_(static_cast<uint64_t>(rows / shards)),
        more_(static_cast<uint64_t>(rows % shards)),
        border_(more_ * (least_ + 1)) {}

  uint32_t of(uint64_t id) const {
    return static_cast<uint32_t>(id < border_ ? id / (least_ + 1) : more_ + (id - border_) / least_);
  }

 private:
  const uint64_t least_, more_, border_;
};

// Numbers the different ones of at most `most` ids in the order in which they come (open addressing).
template <typename T>
class Numbers {
 public:
  explicit Numbers(size_t most) {
    while ((size_t{1} << bits_) < 2 * most) ++bits_;
    table_.assign(size_t{1} << bits_, 0);
  }

  int32_t of(T id, std::vector<T>* known) {
    const size_t mask = table_.size() - 1;
    size_t at = (static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull) >> (64 - bits_);
    for (; table_[at] != 0; at = (at + 1) & mask) {
      if ((*known)[table_[at] - 1] == id) return table_[at] - 1;
    }
    known->push_back(id);
    table_[at] = static_cast<int32_t>(known->size());
    return table_[at] - 1;
  }

 private:
  int bits_ = 4;
  std::vector<int32_t> table_;
};

template <typename T>
class RouteIdsOp : public tf::OpKernel {
 public:
  explicit RouteIdsOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("rows", &rows_));
    OP_REQUIRES_OK(context, context->GetAttr("shards", &shards_));
    OP_REQUIRES_OK(context, context->GetAttr("unique", &unique_));
    OP_REQUIRES_OK(context, context->GetAttr("what", &what_));
    if (what_.empty()) what_ = name();
    OP_REQUIRES(context, rows_ >= shards_,
                tf::errors::InvalidArgument("'", what_, "': a table of ", rows_, " rows has none for some of ", shards_,
                                            " shards."));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& ids = context->input(0);
    const auto flat = ids.flat<T>();
    const tf::int64 count = flat.size();
    tf::Tensor *counts = nullptr, *places = nullptr, *sorted = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, tf::TensorShape({shards_}), &counts));
    OP_REQUIRES_OK(context, context->allocate_output(2, ids.shape(), &places));
    auto of_shard = counts->flat<tf::int64>();
    auto place = places->flat<tf::int32>();
    of_shard.setZero();
    std::vector<T> known;
    known.reserve(count);
    Numbers<T> numbers(unique_ ? count : 0);
    for (tf::int64 i = 0; i < count; ++i) {
      OP_REQUIRES(context, flat(i) >= 0 && static_cast<tf::int64>(flat(i)) < rows_, Outside(ids.shape(), i, flat(i)));
      place(i) = unique_ ? numbers.of(flat(i), &known) : static_cast<tf::int32>(i);
      if (!unique_) known.push_back(flat(i));
    }
    const Owners owners(rows_, shards_);
    std::vector<uint32_t> owner(known.size());
    for (size_t i = 0; i < known.size(); ++i) {
      owner[i] = owners.of(static_cast<uint64_t>(known[i]));
      ++of_shard(owner[i]);
    }
    std::vector<tf::int64> next(shards_, 0);
    for (int shard = 1; shard < shards_; ++shard) next[shard] = next[shard - 1] + of_shard(shard - 1);
    const tf::TensorShape shape({static_cast<tf::int64>(known.size())});
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &sorted));
    auto out = sorted->flat<T>();
    std::vector<tf::int32> position(known.size());
    for (size_t i = 0; i < known.size(); ++i) {
      position[i] = static_cast<tf::int32>(next[owner[i]]++);
      out(position[i]) = known[i];
    }
    for (tf::int64 i = 0; i < count; ++i) place(i) = position[place(i)];
  }

 private:
  // As TensorFlow's own kernel says it.
  tf::Status Outside(const tf::TensorShape& shape, tf::int64 at, T id) const {
    std::string where;
    for (int dim = shape.dims() - 1; dim >= 0; --dim) {
      where = std::to_string(at % shape.dim_size(dim)) + (where.empty() ? "" : ",") + where;
      at /= shape.dim_size(dim);
    }
    return tf::errors::InvalidArgument("'", what_, "': indices[", where, "] = ", id, " is not in [0, ", rows_, ")");
  }

  tf::int64 rows_;
  int shards_;
  bool unique_;
  std::string what_;
};

REGISTER_KERNEL_BUILDER(Name("EplRouteIds").Device(tf::DEVICE_CPU).TypeConstraint<tf::int32>("T"),
                        RouteIdsOp<tf::int32>);
REGISTER_KERNEL_BUILDER(Name("EplRouteIds").Device(tf::DEVICE_CPU).TypeConstraint<tf::int64>("T"),
                        RouteIdsOp<tf::int64>);

}  // namespace
}  // namespace epl_ops
