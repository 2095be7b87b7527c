"""Only whole checkpoints of the same number of ranks are resumed from; metrics go back with them."""

import json

from pipeline.train.checkpoints import mark_complete, newest_complete
from pipeline.train.metrics import keep_steps, read_metrics


def write_checkpoint(folder, step, *, whole=True, ranks=2):
    path = folder / f"checkpoint-{step}"
    (path / "global_step").mkdir(parents=True)
    (path / "global_step" / "states.pt").write_bytes(b"x" * 100)
    if whole:
        mark_complete(path, step, ranks)
    return path


def test_a_whole_checkpoint_replaces_the_ones_before(tmp_path):
    write_checkpoint(tmp_path, 5)
    (tmp_path / "README.md").write_text("TRL writes a card beside the checkpoints")
    newest = write_checkpoint(tmp_path, 10)
    assert newest_complete(tmp_path, 2) == (newest, 10)
    assert list(tmp_path.glob("checkpoint-*")) == [newest]


def test_a_checkpoint_without_its_marker_does_not_count(tmp_path):
    whole = write_checkpoint(tmp_path, 5)
    write_checkpoint(tmp_path, 10, whole=False)
    assert newest_complete(tmp_path, 2) == (whole, 5)


def test_a_checkpoint_with_a_shorter_or_missing_file_does_not_count(tmp_path):
    path = write_checkpoint(tmp_path, 5)
    (path / "global_step" / "states.pt").write_bytes(b"x" * 99)
    assert newest_complete(tmp_path, 2) is None
    (path / "global_step" / "states.pt").unlink()
    assert newest_complete(tmp_path, 2) is None


def test_a_checkpoint_of_another_number_of_ranks_does_not_count(tmp_path):
    write_checkpoint(tmp_path, 5, ranks=4)
    assert newest_complete(tmp_path, 2) is None
    assert newest_complete(tmp_path / "none", 2) is None


def test_metrics_after_the_checkpoint_and_half_lines_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 8)) + '{"step": 8')
    keep_steps(path, 5)
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4, 5]
