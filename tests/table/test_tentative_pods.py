"""Placed pods expire as a check of each would find."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.table.limits import LONGEST_TENTATIVE_SECONDS
from pipeline.table.pod_table import PodTable
from pipeline.table.state_table import USUAL_COUNTING
from pipeline.topics.pods import CountedPod

uids = st.sampled_from("abcdef")
steps = st.one_of(
    st.tuples(st.just("place"), uids, st.sampled_from([0.0, 1.0, 5.0, 300.0, 3600.0])),
    st.tuples(st.just("remove"), uids, st.just(0.0)),
    # A clock that is set, too.
    st.tuples(st.just("wait"), uids, st.sampled_from([0.0, 1.0, 4.0, 5.0, 400.0, -2.0, -9000.0])),
)


@given(st.lists(steps, max_size=40))
def test_placed_pods_expire_once_however_the_clock_is_set(
    taken: list[tuple[str, str, float]],
) -> None:
    pods, now, until = PodTable(USUAL_COUNTING), 1e9, dict[str, float]()
    for step, uid, seconds in taken:
        if step == "place":
            pods.put(0, CountedPod(node="n", uid=uid, cgroup_uid=uid), now, seconds)
            until[uid] = now + seconds
        elif step == "remove":
            pods.remove(uid)
            until.pop(uid, None)
        else:
            now += seconds
        longest = now + LONGEST_TENTATIVE_SECONDS
        expiring = [uid for uid, end in until.items() if not now < end <= longest]
        assert sorted(pods.expired(now)) == sorted(expiring)
        for uid in expiring:
            pods.remove(uid)
            del until[uid]
        assert pods.tentative == len(until)
