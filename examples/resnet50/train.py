"""Trains ResNet-50 on TFRecord files of images, and evaluates it now and then.

epl-launch --num_workers 2 --gpu_per_worker 4 run.sh --data_dir /data/imagenet --model_dir /data/model
"""

import tensorflow.compat.v1 as tf

import epl
import program

tf.disable_v2_behavior()


def main():
    args = program.options(__doc__.splitlines()[0])
    config = {
        "io.slicing": True,  # each worker reads its own part of the files,
        "io.unbalanced_io_slicing": True,  # some perhaps one more than others
        "communication.sync_batch_norm": args.sync_batch_norm,
    }
    epl.init(epl.Config(config))
    epl.set_default_strategy(epl.replicate(device_count=1))
    job = program.Job(args, devices=epl.Env.get().cluster.total_gpu_num)
    steps = job.total if args.stop_at is None else args.stop_at
    tf.estimator.train_and_evaluate(
        job.estimator(),
        tf.estimator.TrainSpec(job.training_input, max_steps=steps),
        tf.estimator.EvalSpec(
            job.evaluation_input, steps=None, exporters=program.PrintMetrics(), start_delay_secs=0, throttle_secs=0
        ),
    )


if __name__ == "__main__":
    main()
