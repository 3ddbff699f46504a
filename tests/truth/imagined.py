"""`python -m tests.truth.imagined SEEDS [FIRST]`: many seeds of the truth test in virtual time."""

import sys

from tests.support.imagined_trial import imagine


def main(seeds: int, first: int) -> int:
    looks = exact = requests = restarts = refuted = 0
    bad: list[int] = []
    for seed in range(first, first + seeds):
        outcome = imagine(seed)
        looks, exact = looks + outcome.looks, exact + outcome.exact_looks
        requests, restarts = requests + outcome.requests, restarts + outcome.restarts
        refuted += outcome.drifts
        if outcome.lies or outcome.late:
            bad.append(seed)
            what = "\n".join([*outcome.log, *outcome.lies, *outcome.late])
            sys.stdout.write(f"seed {seed}\n{what}\n")
    sys.stdout.write(
        f"{seeds} seeds, {requests} requests, {restarts} restarts of engines, {refuted} times "
        f"refuted; {looks} looks, {exact} of them exact; seeds with lies or late: {bad}\n"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:]]
    raise SystemExit(main(*(numbers + [1000, 0][len(numbers) :])))
