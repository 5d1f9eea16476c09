"""The whole path with real parts: a coordinator process on SQLite that is killed, datanodes, Parquet files, rows read back."""

from datanode_process.landing import MESSAGES, Landing, finished


async def test_rows_land_exactly_once_though_coordinator_and_datanode_are_killed(landing: Landing) -> None:
    """The promise of the whole project, with every part real and the kills where they hurt: rows buffered, saves under way."""
    landing.source.set_limit(MESSAGES // 2)
    landing.datanodes.start(0)
    landing.datanodes.start(1)
    await landing.until_consumed(MESSAGES // 2)
    await landing.until(lambda channels: len({channel.node_id for channel in channels}) == 2)

    landing.source.set_limit(MESSAGES * 3 // 4)
    await landing.coordinator.kill()
    await landing.coordinator.start()
    await landing.until_consumed(MESSAGES * 3 // 4)
    await landing.datanodes.kill(0)
    landing.datanodes.start(0)
    landing.source.set_limit(MESSAGES)
    await landing.until(finished)
    await landing.datanodes.stop()

    await landing.check()


async def test_stopping_makes_everything_read_so_far_visible(landing: Landing) -> None:
    """Rows that only wait in buffers when a job is stopped would have to be read again, from a source that may forget them."""
    landing.source.set_limit(MESSAGES // 2)
    landing.datanodes.start(0)
    await landing.until_consumed(MESSAGES // 2)

    await landing.datanodes.stop()

    await landing.check(MESSAGES // 2)
