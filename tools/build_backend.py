"""setuptools' build backend, plus the CUDA toolkit's pip packages where no `nvcc` is installed.

Whether they are needed is known only on the building machine, so pyproject.toml cannot say it.
"""

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (the hooks that stay as they are)

import cuda_toolkit


def get_requires_for_build_wheel(config_settings=None):
    return [
        *build_meta.get_requires_for_build_wheel(config_settings),
        *cuda_toolkit.missing_requirements(),
    ]


def get_requires_for_build_editable(config_settings=None):
    return [
        *build_meta.get_requires_for_build_editable(config_settings),
        *cuda_toolkit.missing_requirements(),
    ]
