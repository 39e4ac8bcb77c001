"""Answer 423 Locked in Django, where an order is being paid.

    python examples/django_view.py

serves port 8000 (on redis://localhost, or the Redis whose URL you append; then the port). Of two requests at once

    curl -i -X POST http://127.0.0.1:8000/orders/42/pay &
    curl -i -X POST http://127.0.0.1:8000/orders/42/pay

one gets

    HTTP/1.1 200 OK
    paid 42

and the other, at once,

    HTTP/1.1 423 Locked
    Retry-After: 1
    order 42 is being paid

Plain views can do this under WSGI and ASGI alike. In an `async def` view, use aiolocks itself.
"""

import sys
import time

from django.conf import settings
from django.core.servers.basehttp import run
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from aiolocks.sync import LockManager

locks = LockManager.from_url(*sys.argv[1:2] or ["redis://localhost"], ttl=10)  # in a real project, in settings.py


def pay(request: HttpRequest, order: int) -> HttpResponse:
    if not (lease := locks.lock(f"orders:{order}").try_acquire()):
        return HttpResponse(f"order {order} is being paid", status=423, headers={"Retry-After": "1"})
    with lease:
        time.sleep(1)  # the work before
        lease.check()  # here the money moves: not after a loss, which cannot stop a thread
    return HttpResponse(f"paid {order}")


urlpatterns = [path("orders/<int:order>/pay", pay)]

if __name__ == "__main__":
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"])
    number = int([*sys.argv[2:3], "8000"][0])
    print(f"running on http://127.0.0.1:{number}")
    run("127.0.0.1", number, get_wsgi_application(), threading=True)
