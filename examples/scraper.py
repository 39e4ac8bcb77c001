"""Scrape a site that can serve a load of 6 with a fleet that shares 6 permits; heavy pages take up to 3 of them.

    python examples/scraper.py

runs the site, which counts its own load, and prints (on redis://localhost, or the Redis whose URL you append)

    60 pages by 3 processes
    highest load: 6
"""

import asyncio
import multiprocessing
import sys

from aiohttp import ClientSession, web

from aiolocks import LockManager


async def scrape(redis_url: str, site: str) -> None:
    async with LockManager.from_url(redis_url) as locks, ClientSession(site) as http:
        permits = locks.semaphore("example:scraper", 6)

        async def fetch(weight: int) -> None:
            async with permits.hold(permits=weight), http.get(f"/{weight}") as page:
                page.raise_for_status()

        await asyncio.gather(*(fetch(weight) for weight in [1, 2, 3, 2] * 5))


def start(redis_url: str, site: str) -> None:
    asyncio.run(scrape(redis_url, site))


async def main(redis_url: str = "redis://localhost") -> None:
    loads = [0]

    async def page(request: web.BaseRequest) -> web.Response:
        weight = int(request.path[1:])
        loads.append(loads[-1] + weight)
        await asyncio.sleep(0.05)
        loads.append(loads[-1] - weight)
        return web.Response()

    runner = web.ServerRunner(web.Server(page))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    site = f"http://127.0.0.1:{runner.addresses[0][1]}"
    fleet = [multiprocessing.get_context("spawn").Process(target=start, args=(redis_url, site)) for _ in range(3)]
    for process in fleet:
        process.start()
    await asyncio.gather(*(asyncio.to_thread(process.join) for process in fleet))
    await runner.cleanup()
    print(f"{len(loads) // 2} pages by {len(fleet)} processes\nhighest load: {max(loads)}")
    sys.exit(any(process.exitcode for process in fleet))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
