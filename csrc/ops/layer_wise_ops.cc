// The updates of LAMB and LARS (epl.optimizers), each in two operations, so that sums of squares can be added up
// between them where several devices have parts of a variable. fuse_layer_wise.cc puts them in the place of the
// operations of TensorFlow that make the same update.
#include <algorithm>
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

tf::Status Scalars(tf::shape_inference::InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Scalar());
  return tf::Status();
}

// Both forms of an operation: of reference variables and of resource variables. A variable is MUTABLE(name), and that
// which is only read too, as it is read where it is.
#define EPL_REF(name) name ": Ref(T)"
#define EPL_RESOURCE(name) name ": resource"
#define EPL_COMMON_ATTRS \
  Attr("T: {float, double}").Attr("excluded: bool = false").Attr("use_locking: bool = false").SetShapeFn(Scalars)
#define EPL_LAMB_NUMBERS \
  Input("beta1: T").Input("beta2: T").Input("power1: T").Input("power2: T").Input("epsilon: T").Input("decay: T")

// The first half of LAMB's update: m and v of this step, the sum of the squares of the variable, and that of the step
// before its ratio. power1 and power2: of the betas, by the steps before this one. Excluded variables have neither
// decay nor a ratio; their sums are 0.
#define EPL_LAMB_MOMENTS(NAME, MUTABLE)      \
  REGISTER_OP(NAME)                          \
      .Input(MUTABLE("m"))                   \
      .Input(MUTABLE("v"))                   \
      .Input(MUTABLE("var"))                 \
      .Input("grad: T")                      \
      .EPL_LAMB_NUMBERS.Output("var_sum: T") \
      .Output("step_sum: T")                 \
      .EPL_COMMON_ATTRS

// The second half: the variable, by the sums of the whole variable.
#define EPL_LAMB_APPLY(NAME, MUTABLE)    \
  REGISTER_OP(NAME)                      \
      .Input(MUTABLE("var"))             \
      .Input(MUTABLE("m"))               \
      .Input(MUTABLE("v"))               \
      .Input("var_sum: T")               \
      .Input("step_sum: T")              \
      .EPL_LAMB_NUMBERS.Input("rate: T") \
      .EPL_COMMON_ATTRS

// The first half of LARS' update: the sums of the squares of a variable and of its gradient. Excluded ones need it not.
#define EPL_LARS_SUMS(NAME, MUTABLE) \
  REGISTER_OP(NAME).Input(MUTABLE("var")).Input("grad: T").Output("var_sum: T").Output("grad_sum: T").EPL_COMMON_ATTRS

// The second half: the velocity and the variable, by the sums of the whole variable.
#define EPL_LARS_APPLY(NAME, MUTABLE) \
  REGISTER_OP(NAME)                   \
      .Input(MUTABLE("var"))          \
      .Input(MUTABLE("velocity"))     \
      .Input("grad: T")               \
      .Input("var_sum: T")            \
      .Input("grad_sum: T")           \
      .Input("rate: T")               \
      .Input("momentum: T")           \
      .Input("coeff: T")              \
      .Input("decay: T")              \
      .Input("epsilon: T")            \
      .EPL_COMMON_ATTRS

EPL_LAMB_MOMENTS("EplLambMoments", EPL_REF);
EPL_LAMB_MOMENTS("EplResourceLambMoments", EPL_RESOURCE);
EPL_LAMB_APPLY("EplLambApply", EPL_REF);
EPL_LAMB_APPLY("EplResourceLambApply", EPL_RESOURCE);
EPL_LARS_SUMS("EplLarsSums", EPL_REF);
EPL_LARS_SUMS("EplResourceLarsSums", EPL_RESOURCE);
EPL_LARS_APPLY("EplLarsApply", EPL_REF);
EPL_LARS_APPLY("EplResourceLarsApply", EPL_RESOURCE);

// The variables among the inputs of an operation: the first ones, of which some are changed. As with TensorFlow's own
// updates, those that are resources are locked while this object lives, and references where `use_locking` says so;
// what others still hold of a resource is copied before it is changed.
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

  // The tensor of the i-th variable, for `changed` ones not shared with anybody. All have the shape of the first one.
  template <typename T>
  tf::Status Get(int i, bool changed, tf::Tensor* tensor) {
    if (is_resource_) {
      tf::Tensor* own = vars_[i]->tensor();
      if (changed && (vars_[i]->copy_on_read_mode.load() || IsShared(own)) && own->IsInitialized()) {
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

  template <typename T>
  static tf::Status SetSum(tf::OpKernelContext* context, int output, const std::vector<double>& sums) {
    tf::Tensor* sum = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(output, tf::TensorShape(), &sum));
    double all = 0;
    for (double each : sums) all += each;
    sum->scalar<T>()() = static_cast<T>(all);
    return tf::Status();
  }

  static size_t Blocks(tf::int64 count) { return (count + epl::kLayerBlock - 1) / epl::kLayerBlock; }

  bool excluded_, use_locking_;
};

template <typename T>
class LambOp : public LayerWiseOp {
 public:
  using LayerWiseOp::LayerWiseOp;

 protected:
  static constexpr int kNumbers = 6;
  static constexpr int kCost = 8;

  epl::LambNumbers<T> Numbers(tf::OpKernelContext* context, int first) const {
    const T beta1 = Number<T>(context, first), beta2 = Number<T>(context, first + 1);
    const T bias1 = 1 - Number<T>(context, first + 2) * beta1, bias2 = 1 - Number<T>(context, first + 3) * beta2;
    const T decay = excluded_ ? T(0) : Number<T>(context, first + 5);
    return epl::LambNumbers<T>{beta1, beta2, bias1, bias2, Number<T>(context, first + 4), decay};
  }
};

template <typename T>
class LambMomentsOp : public LambOp<T> {
 public:
  using LambOp<T>::LambOp;

  void Compute(tf::OpKernelContext* context) override {
    OP_REQUIRES_OK(context, this->CheckNumbers(context, 4, 4 + this->kNumbers));
    const epl::LambNumbers<T> numbers = this->Numbers(context, 4);
    Variables variables(context, 3, this->use_locking_);
    tf::Tensor m, v, var;
    const tf::Tensor& grad = context->input(3);
    OP_REQUIRES_OK(context, variables.Lock());
    OP_REQUIRES_OK(context, variables.Get<T>(0, true, &m));
    OP_REQUIRES_OK(context, variables.Get<T>(1, true, &v));
    OP_REQUIRES_OK(context, variables.Get<T>(2, false, &var));
    OP_REQUIRES_OK(context, variables.SameShape(3, grad));
    const T *g = grad.flat<T>().data(), *w = static_cast<const tf::Tensor&>(var).flat<T>().data();
    T *to_m = m.flat<T>().data(), *to_v = v.flat<T>().data();
    const tf::int64 count = m.NumElements();
    std::vector<double> var_sums(this->Blocks(count)), step_sums(var_sums.size());
    const bool excluded = this->excluded_;
    this->ForBlocks(context, count, this->kCost, [&](tf::int64 i, tf::int64 begin, tf::int64 size) {
      if (excluded) {
        epl::LambMoments(numbers, g + begin, to_m + begin, to_v + begin, size);
      } else {
        epl::LambMoments(numbers, g + begin, w + begin, to_m + begin, to_v + begin, size, &var_sums[i], &step_sums[i]);
      }
    });
    OP_REQUIRES_OK(context, this->template SetSum<T>(context, 0, var_sums));
    OP_REQUIRES_OK(context, this->template SetSum<T>(context, 1, step_sums));
  }
};

template <typename T>
class LambApplyOp : public LambOp<T> {
 public:
  using LambOp<T>::LambOp;

  void Compute(tf::OpKernelContext* context) override {
    OP_REQUIRES_OK(context, this->CheckNumbers(context, 3, 6 + this->kNumbers));
    const epl::LambNumbers<T> numbers = this->Numbers(context, 5);
    T rate = this->template Number<T>(context, 5 + this->kNumbers);
    if (!this->excluded_) {
      rate *= epl::LambRatio(this->template Number<T>(context, 3), this->template Number<T>(context, 4));
    }
    Variables variables(context, 3, this->use_locking_);
    tf::Tensor var, m, v;
    OP_REQUIRES_OK(context, variables.Lock());
    OP_REQUIRES_OK(context, variables.Get<T>(0, true, &var));
    OP_REQUIRES_OK(context, variables.Get<T>(1, false, &m));
    OP_REQUIRES_OK(context, variables.Get<T>(2, false, &v));
    const T *of_m = static_cast<const tf::Tensor&>(m).flat<T>().data(),
            *of_v = static_cast<const tf::Tensor&>(v).flat<T>().data();
    T* w = var.flat<T>().data();
    this->ForBlocksBackward(context, var.NumElements(), this->kCost, [&](tf::int64 begin, tf::int64 size) {
      epl::LambApply(numbers, rate, of_m + begin, of_v + begin, w + begin, size);
    });
  }
};

template <typename T>
class LarsSumsOp : public LayerWiseOp {
 public:
  using LayerWiseOp::LayerWiseOp;

  void Compute(tf::OpKernelContext* context) override {
    Variables variables(context, 1, use_locking_);
    tf::Tensor var;
    const tf::Tensor& grad = context->input(1);
    OP_REQUIRES_OK(context, variables.Lock());
    OP_REQUIRES_OK(context, variables.Get<T>(0, false, &var));
    OP_REQUIRES_OK(context, variables.SameShape(1, grad));
    const T *w = static_cast<const tf::Tensor&>(var).flat<T>().data(), *g = grad.flat<T>().data();
    std::vector<double> var_sums(Blocks(var.NumElements())), grad_sums(var_sums.size());
    ForBlocks(context, var.NumElements(), 2, [&](tf::int64 i, tf::int64 begin, tf::int64 size) {
      var_sums[i] = epl::SumOfSquares(w + begin, size);
      grad_sums[i] = epl::SumOfSquares(g + begin, size);
    });
    OP_REQUIRES_OK(context, SetSum<T>(context, 0, var_sums));
    OP_REQUIRES_OK(context, SetSum<T>(context, 1, grad_sums));
  }
};

template <typename T>
class LarsApplyOp : public LayerWiseOp {
 public:
  using LayerWiseOp::LayerWiseOp;

  void Compute(tf::OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckNumbers(context, 3, 10));
    const T decay = excluded_ ? T(0) : Number<T>(context, 8);
    epl::LarsNumbers<T> numbers{Number<T>(context, 6), Number<T>(context, 5), decay};
    if (!excluded_) {
      numbers.rate *= epl::LarsRatio(Number<T>(context, 3), Number<T>(context, 4), Number<T>(context, 7), decay,
                                     Number<T>(context, 9));
    }
    Variables variables(context, 2, use_locking_);
    tf::Tensor var, velocity;
    const tf::Tensor& grad = context->input(2);
    OP_REQUIRES_OK(context, variables.Lock());
    OP_REQUIRES_OK(context, variables.Get<T>(0, true, &var));
    OP_REQUIRES_OK(context, variables.Get<T>(1, true, &velocity));
    OP_REQUIRES_OK(context, variables.SameShape(2, grad));
    const T* g = grad.flat<T>().data();
    T *w = var.flat<T>().data(), *to = velocity.flat<T>().data();
    ForBlocksBackward(context, var.NumElements(), 4, [&](tf::int64 begin, tf::int64 size) {
      epl::LarsApply(numbers, g + begin, to + begin, w + begin, size);
    });
  }
};

#define EPL_KERNELS(NAME, KERNEL, T) \
  REGISTER_KERNEL_BUILDER(Name(NAME).Device(tf::DEVICE_CPU).TypeConstraint<T>("T"), KERNEL<T>)
#define EPL_ALL_KERNELS(T)                                 \
  EPL_KERNELS("EplLambMoments", LambMomentsOp, T);         \
  EPL_KERNELS("EplResourceLambMoments", LambMomentsOp, T); \
  EPL_KERNELS("EplLambApply", LambApplyOp, T);             \
  EPL_KERNELS("EplResourceLambApply", LambApplyOp, T);     \
  EPL_KERNELS("EplLarsSums", LarsSumsOp, T);               \
  EPL_KERNELS("EplResourceLarsSums", LarsSumsOp, T);       \
  EPL_KERNELS("EplLarsApply", LarsApplyOp, T);             \
  EPL_KERNELS("EplResourceLarsApply", LarsApplyOp, T)

EPL_ALL_KERNELS(float);
EPL_ALL_KERNELS(double);

}  // namespace
}  // namespace epl_ops
