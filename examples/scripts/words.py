"""A small map-reduce: counts words of Python's own documentation strings, file by file, on a fleet."""

import sysconfig
from collections import Counter
from concurrent.futures import as_completed
from pathlib import Path

import fleeting
from taskscaler import Pool
from taskscaler.futures import Call, FleetExecutor
from taskscaler.sync import Taskscaler

LIBRARY = Path(sysconfig.get_path("stdlib"))
FILES = ("argparse.py", "functools.py", "pathlib.py", "subprocess.py", "tarfile.py", "threading.py")

pool = Pool(
    fleeting.load("local", {"name": "words"}),
    capacity_per_instance=2,
    max_instances=2,
    update_interval_when_expecting=0.1,
)
count_words = Call("count:words", files={"count.py": Path(__file__).with_name("count.py")})

with Taskscaler(pool) as scaler, FleetExecutor(scaler) as fleet:
    total: Counter[str] = Counter()
    futures = {fleet.submit(count_words, (LIBRARY / name).read_text()): name for name in FILES}
    for future in as_completed(futures):
        total.update(future.result())
        print("counted", futures[future])

    lengths = fleet.map('printf %s "$1" | wc -c', [word for word, _ in total.most_common(3)])
    for (word, times), result in zip(total.most_common(3), lengths, strict=True):
        print(f"{times} times {word!r}, which has {int(result.check().output)} letters")
