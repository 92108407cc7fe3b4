"""Packaging: what epl needs, and the native part, which epl/communicators/build.py builds."""

import importlib.util
import os
import re

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = os.path.join("epl", "communicators", "lib")


def load(path):
    """A module of the checkout by its path: epl itself cannot be imported before it is installed."""
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[: -len(".py")], os.path.join(ROOT, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


native = load("epl/communicators/build.py")


class WithAdvice(build_py):
    """The package has the page about errors with it, to say where in it an error is (epl/launch/advice.py)."""

    def run(self):
        super().run()
        if not getattr(self, "editable_mode", False):
            target = os.path.join(self.build_lib, "epl", "launch", "troubleshooting.md")
            self.copy_file(os.path.join(ROOT, "docs", "troubleshooting.md"), target)

    def get_outputs(self, include_bytecode=1):
        own = os.path.join(self.build_lib, "epl", "launch", "troubleshooting.md")
        return super().get_outputs(include_bytecode) + [own]


class BuildNative(build_ext):
    """Builds libepl_comm.so and the TensorFlow operations instead of a Python extension."""

    def run(self):
        in_place = self.inplace or getattr(self, "editable_mode", False)
        output = os.path.join(ROOT, LIBRARIES) if in_place else os.path.abspath(os.path.join(self.build_lib, LIBRARIES))
        try:
            self.built = native.build(output=output, root=ROOT)
        except native.BuildError as error:
            # No traceback: the text says what to do.
            raise SystemExit("epl: the native part cannot be built. %s" % error)

    def get_outputs(self):
        return [os.path.join(self.build_lib, LIBRARIES, os.path.basename(path)) for path in getattr(self, "built", [])]

    def get_output_mapping(self):
        return {}

    def get_source_files(self):
        return []  # MANIFEST.in names them


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as source:
        return source.read()


def without_links_to_files(text):
    """A page for elsewhere, where the files that it links to are not beside it: pictures are left out, names stay."""
    text = re.sub(r"!\[[^\]]*\]\((?!\w+:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^\]]*)\]\((?!\w+:)[^)]*\)", r"\1", text)


TF1 = "python_version == '3.7'"
TF2 = "python_version >= '3.9' and python_version < '3.12'"

setup(
    name="epl-tf",  # the name on the index; it is imported as epl
    version=load("epl/version.py").__version__,
    description="Easy Parallel Library: trains single-device TensorFlow scripts on many devices",
    long_description=without_links_to_files(read("README.md")),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    keywords="tensorflow distributed training data-parallel pipeline tensor-parallel zero",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3.7",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["epl", "epl.*"]),
    # A folder that Python is told to look into, not a package; and what says that there are annotations.
    package_data={"epl.tf1": ["site/*.py"], "epl": ["py.typed"]},
    # Only to say that the package is for one platform; see BuildNative.
    ext_modules=[Extension("epl.communicators.lib.native", [])],
    cmdclass={"build_ext": BuildNative, "build_py": WithAdvice},
    zip_safe=False,
    # 3.8: no wheel of either TensorFlow. 3.12: none of TensorFlow 2.15.
    python_requires=">=3.7,!=3.8.*,<3.12",
    install_requires=[
        # The last of the 1.x line, for scripts that were written for it. The kernels are built against its headers.
        "tensorflow==1.15.5; " + TF1,
        # 2.15 is the last with tf.estimator and tf.layers; the kernels are built for the C++ interface of one minor
        # version. 2.15.0 asks for TensorRT wheels that PyPI does not have when it is installed with [and-cuda].
        "tensorflow>=2.15.1,<2.16; " + TF2,
        # TensorFlow 1.15 is built against the C interface of this NumPy, and later ones drop np.object and others.
        "numpy<1.19; " + TF1,
        # TensorFlow 1.15's generated messages are refused by protobuf 4 (3.21) and later.
        "protobuf<3.21; " + TF1,
        # TensorFlow depends on it already; with older ones a taken port is not reported.
        "grpcio>=1.48,<2",
        # TensorFlow depends on it already. It tells when a module has been imported.
        "wrapt>=1.11",
        # Sends the functions of epl.run to the processes that it starts. 2.2.1 is the last for Python 3.7; later ones
        # have the same interface.
        "cloudpickle>=2.2.1,<4",
        # 6.0: yaml.load() without a loader, which would run what a file says, is gone.
        "pyyaml>=6.0,<7",
    ],
    extras_require={
        "gpu": [
            "tensorflow[and-cuda]>=2.15.1,<2.16; " + TF2,
            # NCCL in the version that TensorFlow 2.15 asks for by [and-cuda], so that a process has one NCCL. It has
            # kernels for GPUs up to Hopper (sm_90), and calls that do not block (from 2.14), which EPL needs to end
            # waits. There are wheels for x86_64 only.
            "nvidia-nccl-cu12==2.16.5; platform_machine == 'x86_64' and " + TF2,
            # TensorFlow 1.15's own wheel has its GPU part and uses the CUDA 10.0 of the system. There is no NCCL wheel
            # for that; this one has its CUDA 11 runtime built in, so the two only share the driver.
            "nvidia-nccl-cu11==2.16.5; platform_machine == 'x86_64' and " + TF1,
        ],
        # tf.contrib's layers, slim and metrics for programs of TensorFlow 1: the package that they became.
        "tf1": ["tf_slim==1.1.0; " + TF2],
        "test": ["pytest>=7,<9", "pytest-timeout>=2", "hypothesis>=6", "scikit-learn>=1.0"],
    },
    entry_points={
        "console_scripts": ["epl-launch = epl.launch.main:main", "epl-top = epl.launch.top:main"],
    },
)
