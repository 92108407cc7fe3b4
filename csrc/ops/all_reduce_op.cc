// EplAllReduce: element-wise reduction of a group of tensors over local replicas and over workers.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "op_helpers.h"
#include "shared_tensor.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplAllReduce")
    .Input("tensors: num_inputs * T")
    .Output("reduced: N * T")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .Attr("N: int >= 1")
    .Attr("R: int >= 1 = 1")
    .Attr("num_inputs: int >= 1")
    .Attr("comm: int = 0")
    .Attr("tag: int = -1")
    .Attr("workers: int >= 1")
    .Attr("reduce_op: {'sum', 'mean', 'min', 'max', 'prod'} = 'sum'")
    .Attr("scale: float = 1.0")
    .Attr("wire_fp16: bool = false")
    .Attr("fp16_scale: float = 1.0")
    .Attr("collective_name: string = ''")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      int n, r, inputs;
      TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
      TF_RETURN_IF_ERROR(c->GetAttr("R", &r));
      TF_RETURN_IF_ERROR(c->GetAttr("num_inputs", &inputs));
      if (inputs != n * r) {
        return tf::errors::InvalidArgument("EplAllReduce needs N * R = ", n, " * ", r, " tensors, not ", inputs, ".");
      }
      for (int i = 0; i < n; ++i) {
        tf::shape_inference::ShapeHandle shape = c->input(i);
        for (int replica = 1; replica < r; ++replica) {
          TF_RETURN_IF_ERROR(c->Merge(shape, c->input(replica * n + i), &shape));
        }
        c->set_output(i, shape);
      }
      return tf::Status();
    })
    .Doc(R"doc(
Reduces N tensors over R local replicas and over all workers, as one message.

tensors: N * R tensors: the N tensors of local replica 0, then those of replica 1, and so on.
reduced: N tensors with the shapes of replica 0's.
comm: slot of the communicator in this process's pool; not used when workers is 1.
tag: place in the order that the pool expects, the same on all workers; -1: the order of submission.
workers: number of workers; 1 reduces over the local replicas only.
reduce_op: mean is the sum divided by workers * R; only for floating types.
scale: sums and means are multiplied by this; only for floating types.
wire_fp16: send half-precision numbers: the local sum times fp16_scale goes out, the result is divided by it. The op
  fails on all workers when that makes a finite number infinite. Only for sums of float and double.
collective_name: what error messages call this, the same on all workers; default: the node's name.
)doc");

// fp16 has too few bits to sum several replicas in.
template <typename T>
struct Accumulator {
  typedef T type;
};
template <>
struct Accumulator<Eigen::half> {
  typedef float type;
};
template <>
struct Accumulator<tf::bfloat16> {
  typedef float type;
};

template <typename T, typename Combine>
void CombineAll(const std::vector<const T*>& inputs, T* output, size_t count, Combine combine) {
  typedef typename Accumulator<T>::type A;
  if (std::is_same<T, A>::value) {
    // One pass over an input at a time vectorizes, and the output stays in cache for what it is worth.
    const T* first = inputs[0];
    const T* second = inputs[1];
    for (size_t i = 0; i < count; ++i) {
      output[i] = static_cast<T>(combine(static_cast<A>(first[i]), static_cast<A>(second[i])));
    }
    for (size_t r = 2; r < inputs.size(); ++r) {
      const T* next = inputs[r];
      for (size_t i = 0; i < count; ++i) {
        output[i] = static_cast<T>(combine(static_cast<A>(output[i]), static_cast<A>(next[i])));
      }
    }
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    A sum = static_cast<A>(inputs[0][i]);
    for (size_t r = 1; r < inputs.size(); ++r) sum = combine(sum, static_cast<A>(inputs[r][i]));
    output[i] = static_cast<T>(sum);
  }
}

// Reduces `inputs` (at least two; the first may be the output itself) into `output`.
template <typename T>
void ReduceLocally(epl_reduce_op op, const std::vector<const T*>& inputs, T* output, size_t count) {
  typedef typename Accumulator<T>::type A;
  if (op == EPL_MIN) {
    CombineAll(inputs, output, count, [](A a, A b) { return b < a ? b : a; });
  } else if (op == EPL_MAX) {
    CombineAll(inputs, output, count, [](A a, A b) { return a < b ? b : a; });
  } else if (op == EPL_PROD) {
    CombineAll(inputs, output, count, [](A a, A b) { return static_cast<A>(a * b); });
  } else {
    CombineAll(inputs, output, count, [](A a, A b) { return static_cast<A>(a + b); });
  }
}

template <typename T>
void Multiply(T* data, size_t count, double factor) {
  typedef typename Accumulator<T>::type A;
  const A by = static_cast<A>(factor);
  for (size_t i = 0; i < count; ++i) data[i] = static_cast<T>(static_cast<A>(data[i]) * by);
}

// The half-precision form of a message, with two numbers at its end that are summed along with it and tell every worker
// the same: how many workers had numbers that were infinite or NaN before, and how many had numbers that became so.
class HalfMessage {
 public:
  // Fails when there is no memory for it.
  tf::Status Allocate(tf::OpKernelContext* context, size_t count) {
    count_ = count;
    return context->allocate_temp(tf::DT_HALF, tf::TensorShape({static_cast<tf::int64>(count + 2)}), &tensor_);
  }
  Eigen::half* data() { return reinterpret_cast<Eigen::half*>(Bytes(tensor_)); }

  template <typename T>
  void Encode(const T* input, size_t count, size_t offset, float factor) {
    Eigen::half* output = data() + offset;
    for (size_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(input[i]);
      const Eigen::half half = static_cast<Eigen::half>(value * factor);
      output[i] = half;
      if (!std::isfinite(static_cast<float>(half))) {
        (std::isfinite(static_cast<double>(input[i])) ? overflow_ : not_finite_) = true;
      }
    }
  }
  void Seal() {
    data()[count_] = static_cast<Eigen::half>(not_finite_ ? 1.0f : 0.0f);
    data()[count_ + 1] = static_cast<Eigen::half>(overflow_ ? 1.0f : 0.0f);
  }
  template <typename T>
  void Decode(T* output, size_t count, size_t offset, double factor) {
    const Eigen::half* input = data() + offset;
    for (size_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(input[i]);
      infinite_result_ |= !std::isfinite(value);
      output[i] = static_cast<T>(static_cast<double>(value) * factor);
    }
  }
  // After Decode: whether some worker's finite number, or a sum of finite numbers, became infinite.
  bool Overflowed() {
    const bool not_finite_before = static_cast<float>(data()[count_]) > 0;
    return static_cast<float>(data()[count_ + 1]) > 0 || (infinite_result_ && !not_finite_before);
  }

 private:
  tf::Tensor tensor_;
  size_t count_ = 0;
  bool not_finite_ = false, overflow_ = false, infinite_result_ = false;
};

template <typename T>
struct HasHalfForm : std::integral_constant<bool, std::is_same<T, float>::value || std::is_same<T, double>::value> {};

template <typename T>
class AllReduceOp : public tf::AsyncOpKernel {
 public:
  explicit AllReduceOp(tf::OpKernelConstruction* context) : AsyncOpKernel(context) {
    std::string reduce_op;
    OP_REQUIRES_OK(context, context->GetAttr("N", &num_tensors_));
    OP_REQUIRES_OK(context, context->GetAttr("R", &num_replicas_));
    OP_REQUIRES_OK(context, context->GetAttr("comm", &slot_));
    OP_REQUIRES_OK(context, context->GetAttr("tag", &tag_));
    OP_REQUIRES_OK(context, context->GetAttr("workers", &workers_));
    OP_REQUIRES_OK(context, context->GetAttr("reduce_op", &reduce_op));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
    OP_REQUIRES_OK(context, context->GetAttr("wire_fp16", &wire_fp16_));
    OP_REQUIRES_OK(context, context->GetAttr("fp16_scale", &fp16_scale_));
    OP_REQUIRES_OK(context, context->GetAttr("collective_name", &collective_name_));
    if (collective_name_.empty()) collective_name_ = name();
    reduce_op_ = reduce_op == "min" ? EPL_MIN : reduce_op == "max" ? EPL_MAX : reduce_op == "prod" ? EPL_PROD : EPL_SUM;
    const bool mean = reduce_op == "mean";
    factor_ = mean ? scale_ / (static_cast<double>(workers_) * num_replicas_) : scale_;
    const tf::DataType dtype = tf::DataTypeToEnum<T>::value;
    ToCommType(dtype, &comm_type_);
    OP_REQUIRES(context, scale_ == 1.0f || (tf::DataTypeIsFloating(dtype) && reduce_op_ == EPL_SUM),
                tf::errors::InvalidArgument("EplAllReduce '", name(), "': scale is ", scale_,
                                            "; it must be 1 unless floating numbers are summed."));
    OP_REQUIRES(context, !mean || tf::DataTypeIsFloating(dtype),
                tf::errors::InvalidArgument("EplAllReduce '", name(), "': the mean of ", tf::DataTypeString(dtype),
                                            " is no whole number; cast to a floating type first."));
    OP_REQUIRES(context, !wire_fp16_ || (HasHalfForm<T>::value && reduce_op_ == EPL_SUM),
                tf::errors::InvalidArgument("EplAllReduce '", name(),
                                            "': wire_fp16 works with sums of float and double "
                                            "only, not with ",
                                            reduce_op, " of ", tf::DataTypeString(dtype), "."));
    OP_REQUIRES(context, !wire_fp16_ || (fp16_scale_ > 0 && std::isfinite(fp16_scale_)),
                tf::errors::InvalidArgument("EplAllReduce '", name(), "': fp16_scale is ", fp16_scale_,
                                            "; it must be a finite number above 0."));
    // What is computed here and not by the communicator is computed on the host.
    OP_REQUIRES(context, !OnGpu(context) || (workers_ > 1 && num_replicas_ == 1 && !wire_fp16_),
                tf::errors::InvalidArgument("EplAllReduce '", name(),
                                            "': on a GPU it reduces one tensor a worker between "
                                            "several workers, without wire_fp16; it has ",
                                            num_replicas_, " local replicas, ", workers_, " workers and wire_fp16=",
                                            wire_fp16_ ? "true" : "false", ". Place it on the host."));
  }

  // If it only starts something, the executor does so at once, instead of queueing it behind work for its threads.
  bool IsExpensive() override { return workers_ == 1 || num_replicas_ > 1 || wire_fp16_; }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    std::shared_ptr<PoolSlot> slot;
    if (workers_ > 1) {
      slot = std::make_shared<PoolSlot>(slot_);
      OP_REQUIRES_ASYNC(context, slot->get() != nullptr, NoCommunicator(slot_, collective_name_), done);
    }
    std::vector<tf::Tensor*> outputs(num_tensors_, nullptr);
    ForwardInputs(context, &outputs);
    if (slot != nullptr && !wire_fp16_ && StreamOf(context) == nullptr) ShareOutputs(context, slot->get(), &outputs);
    for (int i = 0; i < num_tensors_; ++i) {
      OP_REQUIRES_OK_ASYNC(context, MakeOutput(context, i, &outputs[i]), done);
    }
    if (workers_ == 1) {
      FinishAlone(context, outputs);
      done();
    } else if (wire_fp16_) {
      StartHalf(context, slot, outputs, done);
    } else {
      Start(context, slot, outputs, done);
    }
  }

 private:
  static T* Data(const tf::Tensor& tensor) { return reinterpret_cast<T*>(Bytes(tensor)); }

  // Puts results in the place of inputs that nothing else needs.
  void ForwardInputs(tf::OpKernelContext* context, std::vector<tf::Tensor*>* outputs) {
    for (int i = 0; i < num_tensors_; ++i) {
      if (context->forward_input_to_output_with_shape(i, i, context->input(i).shape(), &(*outputs)[i])) continue;
      (*outputs)[i] = nullptr;
    }
  }

  // Others go to memory that the workers of a host share, where the message is large enough for the collective to make
  // something of it. It does so only if all results lie there.
  void ShareOutputs(tf::OpKernelContext* context, epl_comm* comm, std::vector<tf::Tensor*>* outputs) {
    size_t bytes = 0;
    for (int i = 0; i < num_tensors_; ++i) {
      if ((*outputs)[i] != nullptr) return;
      bytes += context->input(i).NumElements() * sizeof(T);
    }
    if (bytes < EPL_SHARED_BYTES) return;
    for (int i = 0; i < num_tensors_; ++i) {
      tf::Tensor shared;
      if (!SharedTensor(comm, tf::DataTypeToEnum<T>::value, context->input(i).shape(), &shared)) return;
      context->set_output(i, shared);
      (*outputs)[i] = context->mutable_output(i);
    }
  }

  // Makes output `i` where it is not there yet: with several local replicas it holds their result, with one it may
  // still be empty.
  tf::Status MakeOutput(tf::OpKernelContext* context, int i, tf::Tensor** output) {
    const tf::Tensor& input = context->input(i);
    for (int r = 1; r < num_replicas_; ++r) {
      const tf::TensorShape& other = context->input(r * num_tensors_ + i).shape();
      if (other != input.shape()) {
        return tf::errors::InvalidArgument("'", collective_name_, "': tensor ", i, " has shape ",
                                           input.shape().DebugString(), " in local replica 0 and ", other.DebugString(),
                                           " in local replica ", r, "; they must be equal.");
      }
    }
    std::vector<const T*> inputs;
    for (int r = 0; r < num_replicas_; ++r) inputs.push_back(Data(context->input(r * num_tensors_ + i)));
    if (*output == nullptr) TF_RETURN_IF_ERROR(context->allocate_output(i, input.shape(), output));
    if (num_replicas_ > 1) ReduceLocally<T>(reduce_op_, inputs, Data(**output), (*output)->NumElements());
    return tf::Status();
  }

  // The local result of tensor `i`.
  const T* Local(tf::OpKernelContext* context, const std::vector<tf::Tensor*>& outputs, int i) const {
    return num_replicas_ > 1 ? Data(*outputs[i]) : Data(context->input(i));
  }

  void FinishAlone(tf::OpKernelContext* context, const std::vector<tf::Tensor*>& outputs) {
    for (int i = 0; i < num_tensors_; ++i) {
      const size_t count = outputs[i]->NumElements();
      const T* local = Local(context, outputs, i);
      T* output = Data(*outputs[i]);
      if (local != output && count > 0) std::memcpy(output, local, count * sizeof(T));
      if (factor_ != 1.0) Multiply(output, count, factor_);
    }
  }

  void Start(tf::OpKernelContext* context, const std::shared_ptr<PoolSlot>& slot,
             const std::vector<tf::Tensor*>& outputs, const DoneCallback& done) {
    Call* call = NewCall(context, slot, [context, done](const tf::Status& status) {
      if (!status.ok()) context->SetStatus(status);
      done();
    });
    call->request.dtype = comm_type_;
    call->request.scale = factor_;
    for (int i = 0; i < num_tensors_; ++i) {
      epl_segment segment;
      segment.in = Local(context, outputs, i);
      segment.out = Data(*outputs[i]);
      segment.count = outputs[i]->NumElements();
      call->segments.push_back(segment);
    }
    call->Start();
  }

  void StartHalf(tf::OpKernelContext* context, const std::shared_ptr<PoolSlot>& slot,
                 const std::vector<tf::Tensor*>& outputs, const DoneCallback& done) {
    size_t count = 0;
    for (tf::Tensor* output : outputs) count += output->NumElements();
    std::shared_ptr<HalfMessage> message = std::make_shared<HalfMessage>();
    OP_REQUIRES_OK_ASYNC(context, message->Allocate(context, count), done);
    size_t offset = 0;
    for (int i = 0; i < num_tensors_; ++i) {
      message->Encode(Local(context, outputs, i), outputs[i]->NumElements(), offset, fp16_scale_);
      offset += outputs[i]->NumElements();
    }
    message->Seal();
    Call* call = NewCall(context, slot, [this, context, outputs, message, done](const tf::Status& status) {
      if (!status.ok()) {
        context->SetStatus(status);
        done();
        return;
      }
      RunOnDevice(context, [this, context, outputs, message, done]() {
        FinishHalf(context, outputs, message.get());
        done();
      });
    });
    call->request.dtype = EPL_FLOAT16;
    epl_segment segment;
    segment.in = segment.out = message->data();
    segment.count = count + 2;
    call->segments.push_back(segment);
    call->Start();
  }

  void FinishHalf(tf::OpKernelContext* context, const std::vector<tf::Tensor*>& outputs, HalfMessage* message) {
    size_t offset = 0;
    for (tf::Tensor* output : outputs) {
      message->Decode(Data(*output), output->NumElements(), offset, factor_ / fp16_scale_);
      offset += output->NumElements();
    }
    if (!message->Overflowed()) return;
    context->SetStatus(tf::errors::InvalidArgument(
        "'", collective_name_,
        "': a finite gradient became infinite in the half-precision numbers that workers send "
        "(they end at 65504; communication.fp16_scale is ",
        fp16_scale_,
        "). Make communication.fp16_scale smaller, or set "
        "communication.fp16 to False."));
  }

  template <typename Finish>
  Call* NewCall(tf::OpKernelContext* context, const std::shared_ptr<PoolSlot>& slot, Finish finish) {
    Call* call = new Call(context, slot, collective_name_, finish);
    call->request.tag = tag_;
    call->request.collective = EPL_ALL_REDUCE;
    call->request.reduce_op = reduce_op_;
    return call;
  }

  int num_tensors_, num_replicas_, slot_, workers_;
  tf::int64 tag_;
  float scale_, fp16_scale_;
  double factor_;  // what sums are multiplied by
  bool wire_fp16_;
  epl_reduce_op reduce_op_;
  epl_dtype comm_type_;
  std::string collective_name_;
};

#define EPL_REGISTER(type)                                                                                           \
  REGISTER_KERNEL_BUILDER(Name("EplAllReduce").Device(tf::DEVICE_CPU).TypeConstraint<type>("T"), AllReduceOp<type>); \
  EPL_REGISTER_GPU_KERNEL(Name("EplAllReduce").TypeConstraint<type>("T"), AllReduceOp<type>)
EPL_REGISTER(Eigen::half);
EPL_REGISTER(tf::bfloat16);
EPL_REGISTER(float);
EPL_REGISTER(double);
EPL_REGISTER(tf::int32);
EPL_REGISTER(tf::int64);
#undef EPL_REGISTER

}  // namespace
}  // namespace epl_ops
