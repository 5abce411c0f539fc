"""The console's pages in a browser."""

from tests.support.browser import Browser
from tests.support.controller_program import Controller

PAGES = ("fleet", "policies", "canaries", "models", "audit", "access")


def show(browser: Browser, controller: Controller, page: str) -> None:
    browser.open("about:blank")
    browser.open(f"{controller.url}/#{page}")
    browser.sees("live,")
