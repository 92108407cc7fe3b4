// The updates of LAMB and LARS (epl.optimizers), each in one operation that goes through a variable twice: norms are of
// the whole variable, and the second time finds in caches what the first one has left there. fuse_layer_wise.cc puts
// them in the place of the operations of TensorFlow that make the same update.
#include <algorithm>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "layer_wise.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/util/work_sharder.h"

namespace epl_ops {
namespace {

namespace tf = tensorflow;

tf::Status NoOutputs(tf::shape_inference::InferenceContext*) { return tf::Status(); }

// Both forms of an operation: of reference variables and of resource variables. A variable is VARIABLE(name).
#define EPL_REF(name) name ": Ref(T)"
#define EPL_RESOURCE(name) name ": resource"
#define EPL_COMMON_ATTRS \
  Attr("T: {float, double}").Attr("excluded: bool = false").Attr("use_locking: bool = false").SetShapeFn(NoOutputs)

// power1 and power2: of the betas, by the steps before this one. Excluded variables have neither decay nor a ratio.
#define EPL_LAMB(NAME, VARIABLE) \
  REGISTER_OP(NAME)              \
      .Input(VARIABLE("var"))    \
      .Input(VARIABLE("m"))      \
      .Input(VARIABLE("v"))      \
      .Input("grad: T")          \
      .Input("beta1: T")         \
      .Input("beta2: T")         \
      .Input("power1: T")        \
      .Input("power2: T")        \
      .Input("epsilon: T")       \
      .Input("decay: T")         \
      .Input("rate: T")          \
      .EPL_COMMON_ATTRS

#define EPL_LARS(NAME, VARIABLE)   \
  REGISTER_OP(NAME)                \
      .Input(VARIABLE("var"))      \
      .Input(VARIABLE("velocity")) \
      .Input("grad: T")            \
      .Input("rate: T")            \
      .Input("momentum: T")        \
      .Input("coeff: T")           \
      .Input("decay: T")           \
      .Input("epsilon: T")         \
      .EPL_COMMON_ATTRS

EPL_LAMB("EplLamb", EPL_REF);
EPL_LAMB("EplResourceLamb", EPL_RESOURCE);
EPL_LARS("EplLars", EPL_REF);
EPL_LARS("EplResourceLars", EPL_RESOURCE);

// The variables among the inputs of an operation: the first ones. As with TensorFlow's own updates, those that are
// resources are locked while this object lives, and references where `use_locking` says so; what others still hold of a
// resource is copied before it is changed.
class Variables {
 public:
  Variables(tf::OpKernelContext* context, int count, bool use_locking) : context_(context), count_(count) {
    is_resource_ = context->input_dtype(0) == tf::DT_RESOURCE;
    use_locking_ = use_locking || is_resource_;
  }
  ~Variables() {
    for (tf::mutex* each : locked_) each->unlock();
    for (tf::Var* each : vars_) each->Unref();
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

  tf::Status Lock() {
    std::vector<tf::mutex*> mutexes;
    for (int i = 0; i < count_; ++i) {
      if (is_resource_) {
        tf::Var* var = nullptr;
        TF_RETURN_IF_ERROR(tf::LookupResource(context_, tf::HandleFromInput(context_, i), &var));
        vars_.push_back(var);
        mutexes.push_back(var->mu());
      } else {
        mutexes.push_back(context_->input_ref_mutex(i));
      }
    }
    // By their addresses, as all do that lock several.
    std::sort(mutexes.begin(), mutexes.end());
    mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
    for (tf::mutex* each : use_locking_ ? mutexes : std::vector<tf::mutex*>()) {
      each->lock();
      locked_.push_back(each);
    }
    return tf::Status();
  }

  // The tensor of the i-th variable, not shared with anybody. All have the shape of the first one.
  template <typename T>
  tf::Status Get(int i, tf::Tensor* tensor) {
    if (is_resource_) {
      tf::Tensor* own = vars_[i]->tensor();
      if ((vars_[i]->copy_on_read_mode.load() || IsShared(own)) && own->IsInitialized()) {
        tf::Tensor copy;
        TF_RETURN_IF_ERROR(context_->allocate_temp(own->dtype(), own->shape(), &copy));
        copy.flat<T>() = static_cast<const tf::Tensor*>(own)->flat<T>();
        *own = copy;
      }
      *tensor = *own;
    } else {
      *tensor = context_->mutable_input(i, use_locking_);
    }
    if (!tensor->IsInitialized()) {
      return tf::errors::FailedPrecondition("Attempting to use uninitialized value '",
                                            context_->op_kernel().requested_input(i), "' in '",
                                            context_->op_kernel().name(), "'");
    }
    if (i == 0) shape_ = tensor->shape();
    return SameShape(i, *tensor);
  }

  tf::Status SameShape(int i, const tf::Tensor& tensor) const {
    if (tensor.shape() == shape_) return tf::Status();
    return tf::errors::InvalidArgument(
        "'", context_->op_kernel().name(), "': '", context_->op_kernel().requested_input(i), "' has shape ",
        tensor.shape().DebugString(), ", but '", context_->op_kernel().requested_input(0), "' ", shape_.DebugString());
  }

 private:
  // Whether somebody else holds what a tensor is.
  static bool IsShared(tf::Tensor* tensor) {
    tf::TensorBuffer* buffer = tf::DMAHelper::buffer(tensor);
    return buffer != nullptr && !(buffer->RefCountIsOne() && buffer->root_buffer() == buffer && buffer->OwnsMemory());
  }

  tf::OpKernelContext* context_;
  int count_;
  bool is_resource_, use_locking_;
  tf::TensorShape shape_;
  std::vector<tf::Var*> vars_;
  std::vector<tf::mutex*> locked_;
};

// Large variables are updated one after the other, by all threads together. Side by side, the first pass of one would
// push out of the caches what the first pass of the other has brought there for its second one.
constexpr tf::int64 kLarge = 1 << 16;  // elements

class LargeUpdate {
 public:
  explicit LargeUpdate(tf::int64 count) : is_large_(count >= kLarge) {
    if (is_large_) Mutex().lock();
  }
  ~LargeUpdate() {
    if (is_large_) Mutex().unlock();
  }
  LargeUpdate(const LargeUpdate&) = delete;
  LargeUpdate& operator=(const LargeUpdate&) = delete;

 private:
  static std::mutex& Mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  const bool is_large_;
};

class LayerWiseOp : public tf::OpKernel {
 public:
  explicit LayerWiseOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("excluded", &excluded_));
    OP_REQUIRES_OK(context, context->GetAttr("use_locking", &use_locking_));
  }

 protected:
  template <typename T>
  static T Number(tf::OpKernelContext* context, int i) {
    return context->input(i).scalar<T>()();
  }
  tf::Status CheckNumbers(tf::OpKernelContext* context, int begin, int end) const {
    for (int i = begin; i < end; ++i) {
      if (context->input(i).dims() != 0) {
        return tf::errors::InvalidArgument("'", name(), "': '", requested_input(i),
                                           "' must be a scalar, but has shape ",
                                           context->input(i).shape().DebugString());
      }
    }
    return tf::Status();
  }

  // Calls `block(number of the block, first element, number of elements)` on the device's threads. `cost`: processor
  // cycles of an element.
  template <typename Block>
  static void ForBlocks(tf::OpKernelContext* context, tf::int64 count, int cost, const Block& block) {
    const tf::int64 size = epl::kLayerBlock, blocks = (count + size - 1) / size;
    const auto range = [&](tf::int64 begin, tf::int64 end) {
      for (tf::int64 i = begin; i < end; ++i) block(i, i * size, std::min(size, count - i * size));
    };
    if (blocks <= 1) return range(0, blocks);  // most variables of a model are small
    const auto* threads = context->device()->tensorflow_cpu_worker_threads();
    tf::Shard(threads->num_threads, threads->workers, blocks, size * cost, range);
  }
  // The same from the last block on: what the first half has left in caches.
  template <typename Block>
  static void ForBlocksBackward(tf::OpKernelContext* context, tf::int64 count, int cost, const Block& block) {
    const tf::int64 size = epl::kLayerBlock, last = (count + size - 1) / size - 1;
    ForBlocks(context, count, cost, [&](tf::int64 i, tf::int64, tf::int64) {
      const tf::int64 begin = (last - i) * size;
      block(begin, std::min(size, count - begin));
    });
  }

  static double Total(const std::vector<double>& sums) { return std::accumulate(sums.begin(), sums.end(), 0.); }
  static size_t Blocks(tf::int64 count) { return (count + epl::kLayerBlock - 1) / epl::kLayerBlock; }

  bool excluded_, use_locking_;
};

template <typename T>
class LambOp : public LayerWiseOp {
 public:
  using LayerWiseOp::LayerWiseOp;

  void Compute(tf::OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckNumbers(context, 4, 11));
    const T beta1 = Number<T>(context, 4), beta2 = Number<T>(context, 5);
    const T bias1 = 1 - Number<T>(context, 6) * beta1, bias2 = 1 - Number<T>(context, 7) * beta2;
    const T decay = excluded_ ? T(0) : Number<T>(context, 9);
    const epl::LambNumbers<T> numbers{beta1, beta2, bias1, bias2, Number<T>(context, 8), decay};
    T rate = Number<T>(context, 10);
    Variables variables(context, 3, use_locking_);
    tf::Tensor var, m, v;
    const tf::Tensor& grad = context->input(3);
    OP_REQUIRES_OK(context, variables.Lock());
    OP_REQUIRES_OK(context, variables.Get<T>(0, &var));
    OP_REQUIRES_OK(context, variables.Get<T>(1, &m));
    OP_REQUIRES_OK(context, variables.Get<T>(2, &v));
    OP_REQUIRES_OK(context, variables.SameShape(3, grad));
    const T* g = grad.flat<T>().data();
    T *w = var.flat<T>().data(), *of_m = m.flat<T>().data(), *of_v = v.flat<T>().data();
    const tf::int64 count = var.NumElements();
    const LargeUpdate alone(count);
    if (excluded_) {
      ForBlocks(context, count, 2 * kCost, [&](tf::int64, tf::int64 begin, tf::int64 size) {
        epl::LambMoments(numbers, g + begin, of_m + begin, of_v + begin, size);
        epl::LambApply(numbers, rate, of_m + begin, of_v + begin, w + begin, size);
      });
      return;
    }
    std::vector<double> var_sums(Blocks(count)), step_sums(var_sums.size());
    ForBlocks(context, count, kCost, [&](tf::int64 i, tf::int64 begin, tf::int64 size) {
      epl::LambMoments(numbers, g + begin, w + begin, of_m + begin, of_v + begin, size, &var_sums[i], &step_sums[i]);
    });
    rate *= epl::LambRatio(static_cast<T>(Total(var_sums)), static_cast<T>(Total(step_sums)));
    ForBlocksBackward(context, count, kCost, [&](tf::int64 begin, tf::int64 size) {
      epl::LambApply(numbers, rate, of_m + begin, of_v + begin, w + begin, size);
    });
  }

 private:
  static constexpr int kCost = 8;
};

template <typename T>
class LarsOp : public LayerWiseOp {
 public:
  using LayerWiseOp::LayerWiseOp;

  void Compute(tf::OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckNumbers(context, 3, 8));
    const T decay = excluded_ ? T(0) : Number<T>(context, 6);
    epl::LarsNumbers<T> numbers{Number<T>(context, 4), Number<T>(context, 3), decay};
    Variables variables(context, 2, use_locking_);
    tf::Tensor var, velocity;
    const tf::Tensor& grad = context->input(2);
    OP_REQUIRES_OK(context, variables.Lock());
    OP_REQUIRES_OK(context, variables.Get<T>(0, &var));
    OP_REQUIRES_OK(context, variables.Get<T>(1, &velocity));
    OP_REQUIRES_OK(context, variables.SameShape(2, grad));
    const T* g = grad.flat<T>().data();
    T *w = var.flat<T>().data(), *to = velocity.flat<T>().data();
    const tf::int64 count = var.NumElements();
    const LargeUpdate alone(count);
    if (!excluded_) {
      std::vector<double> var_sums(Blocks(count)), grad_sums(var_sums.size());
      ForBlocks(context, count, 2, [&](tf::int64 i, tf::int64 begin, tf::int64 size) {
        epl::SumsOfSquares(w + begin, g + begin, size, &var_sums[i], &grad_sums[i]);
      });
      numbers.rate *= epl::LarsRatio(static_cast<T>(Total(var_sums)), static_cast<T>(Total(grad_sums)),
                                     Number<T>(context, 5), decay, Number<T>(context, 7));
    }
    ForBlocksBackward(context, count, 4, [&](tf::int64 begin, tf::int64 size) {
      epl::LarsApply(numbers, g + begin, to + begin, w + begin, size);
    });
  }
};

#define EPL_KERNELS(NAME, KERNEL, T) \
  REGISTER_KERNEL_BUILDER(Name(NAME).Device(tf::DEVICE_CPU).TypeConstraint<T>("T"), KERNEL<T>)
#define EPL_ALL_KERNELS(T)                   \
  EPL_KERNELS("EplLamb", LambOp, T);         \
  EPL_KERNELS("EplResourceLamb", LambOp, T); \
  EPL_KERNELS("EplLars", LarsOp, T);         \
  EPL_KERNELS("EplResourceLars", LarsOp, T)

EPL_ALL_KERNELS(float);
EPL_ALL_KERNELS(double);

}  // namespace
}  // namespace epl_ops
