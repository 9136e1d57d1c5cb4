"""Java's classes as Spark loads them, parsed and verified once for all of Spark's JVMs that tests start.

`make test` makes the archive: `python -m tests.class_archive`. The JVM takes from it what fits its own class path, and
does without where nothing does. Measured: 3.6 instead of 6.4 s of CPU for a driver that has run its first job, 2.45
instead of 3.8 for a master or a worker, which has other classes too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
VARIABLE = "SPARK_SUBMIT_OPTS"  # what Spark's launcher adds to the command line of a driver's JVM
QUIET = "-Xlog:disable -Xlog:all=error:stderr"  # it warns of each class that it leaves out


def use() -> None:
    """Have the drivers that this process' children start take their classes from the archive, if there is one."""
    if ARCHIVE.exists():
        os.environ[VARIABLE] = f"-XX:SharedArchiveFile={ARCHIVE} {QUIET}"


def options() -> dict[str, str]:
    """The environment in which any JVM, also one of a cluster, takes its classes from the archive, if there is one."""
    return {"JAVA_TOOL_OPTIONS": f"-XX:SharedArchiveFile={ARCHIVE} {QUIET}"} if ARCHIVE.exists() else {}


def make() -> None:
    """Run a driver that writes the classes it has loaded when it ends."""
    from spark_jobs import session

    ARCHIVE.unlink(missing_ok=True)
    os.environ[VARIABLE] = f"-XX:ArchiveClassesAtExit={ARCHIVE} {QUIET}"
    context = session.start_spark(session.settings_for("local[2]", name="classes", has_ui=False), {})
    session.warm_up(context)
    jvm = context._gateway.proc
    context.stop()
    jvm.stdin.close()  # its signal to end
    jvm.wait()


if __name__ == "__main__":
    make()
