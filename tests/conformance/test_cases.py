"""A build without the cases fails."""

import hashlib

import pytest

from tests.conformance.given import FAMILIES, FOLDER, load, raw

GIVEN = {
    "deduplicate": (72, "a0a9d371d49e22f4d750d1207687af16d1f8d2aaa1a968990b5424ca3fd06324"),
    "hopping": (60, "8ca791287e1870d8bfbd43ea2ba527de7e9444de9fecb1d859f82541a5c11368"),
    "session": (80, "4caa46d5d8bf792a59a48af3ff2ee90cf3fc77074aef1755a452ff5ad2561eed"),
    "sliding": (40, "479dc1ccaea215cd8d52c2ac0b658da09431703221be70e4822c1f63f641773a"),
    "table": (40, "fbff407a7c46ee7c7438a844e9f1ee456dbf669e31521af8eed45f06f490198a"),
    "tumbling": (80, "1bfec994d42ccb3fae46929846dd8150c8d739fefa8e88c87b62a85569c4d489"),
}


def test_every_family_that_was_given_is_here():
    assert {path.name for path in FOLDER.iterdir()} == {f"{family}.jsonl.gz" for family in FAMILIES}
    assert set(GIVEN) == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cases_are_those_that_were_given(family):
    assert hashlib.sha256(raw(family)).hexdigest() == GIVEN[family][1]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_case_has_a_name_a_job_records_and_outputs(family):
    cases = load(family)
    assert len(cases) == GIVEN[family][0]
    assert len({case["name"] for case in cases}) == len(cases)
    for case in cases:
        assert {"name", "family", "job", "records", "outputs"} <= set(case)
