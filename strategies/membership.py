"""The first exchange of every run: who takes part, and with which code and data."""

from __future__ import annotations

from logging import INFO

from flwr.app import Message
from flwr.supercore import log

from strategies.exchange import SERVER, Disclosure, Exchange, duplicates
from strategies.faults import LATE, MALFORMED
from tasks.site.foreign_text import printable
from tasks.site.messages import HELLO, Facts, HelloReply, HelloRequest, TaskPart
from tasks.site.name_lists import lines_by_words, some_names
from tasks.site.reply_fields import MalformedReply

HELLO_DISCLOSURE = {HELLO: Disclosure("hello", HelloRequest.reveals, HelloReply.reveals)}


class Refused(RuntimeError):
    """The run must not start: everything that is wrong, a line a fault.

    Parameters
    ----------
    faults : list of str
        Site, and what is wrong there.
    """

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults = [printable(fault, longest=None) for fault in faults]
        super().__init__("; ".join(faults))


def introduce_sites(
    exchange: Exchange,
    *,
    fingerprint: str,
    min_sites: int,
    exclude_codes: frozenset[str] = frozenset(),
) -> list[str]:
    """Ask every node for its name, code and the state of its data, and admit the sites.

    Parameters, returned names and raises: see :func:`meet_sites`.
    """
    met = meet_sites(
        exchange, fingerprint=fingerprint, min_sites=min_sites, exclude_codes=exclude_codes
    )
    return list(met)


def meet_sites(
    exchange: Exchange,
    *,
    fingerprint: str,
    min_sites: int,
    exclude_codes: frozenset[str] = frozenset(),
    task: Facts | None = None,
) -> dict[str, TaskPart]:
    """Introduce sites, and return what each of them told for the task.

    Parameters
    ----------
    exchange : Exchange
        On return only admitted sites are its nodes, by name.
    fingerprint : str
        Of the server's code; a node with another one is refused.
    min_sites : int
        Fewest sites with which the run starts.
    exclude_codes : set of str
        Kinds of fault with which a site is left out instead of ending the run.
    task : mapping, optional
        What the task tells every site.

    Returns
    -------
    dict of str to TaskPart
        By name of the sites that take part, sorted.

    Raises
    ------
    Refused
        If a node runs other code, two nodes have one name, a site's data or settings are not
        usable, or fewer than `min_sites` are left. All faults at once.
    """
    nodes = exchange.wait_for_nodes(min_sites)
    content = HelloRequest(fingerprint=fingerprint, task=task or {}).to_record()
    replies = exchange.send_and_receive(
        [Message(content, dst_node_id=node, message_type=HELLO) for node in nodes]
    )
    sites, faults = _read_replies(exchange, replies, fingerprint)
    exchange.learn_names({node: reply.site for node, reply in sites.items() if reply.site})
    # Who is late, or says what no site would, may be missed; who answers with an error is set up
    # wrongly.
    missed = (LATE, MALFORMED)
    faults += [str(fault) for fault in exchange.faults if fault.code not in missed]
    admitted: dict[int, str] = {}
    said: list[tuple[str, str]] = []
    for node, reply in sites.items():
        if not reply.fault_code:
            admitted[node] = reply.site
        elif reply.fault_code in exclude_codes:
            reason = "; ".join(reply.fault_reasons) + "; left out"
            exchange.report_fault(node, reply.fault_code, reason, step="hello")
        else:
            name = reply.site or f"node-{node}"
            for reason in reply.fault_reasons:
                said.append((name, reason))
    faults += lines_by_words(said)
    given = [reply.site for reply in sites.values() if reply.site]
    faults.extend(
        f"{name}: more than one node has this site name; names must differ"
        for name in duplicates(given)
    )
    if SERVER in given:
        faults.append(f"{SERVER}: no site may have this name, it is the server's in the ledger")
    if not faults and len(admitted) < min_sites:
        left = [str(fault) for fault in exchange.faults]
        able = "1 site" if len(admitted) == 1 else f"{len(admitted)} sites"
        faults = [f"{able} can take part, min-sites is {min_sites}", *left]
    if faults:
        raise Refused(faults)
    exchange.admit(admitted)
    names = sorted(admitted.values())
    log(INFO, "%d sites take part: %s", len(names), some_names(names))
    parts = {reply.site: reply.task for reply in sites.values()}
    return {name: parts[name] for name in names}


def _read_replies(
    exchange: Exchange, replies: list[Message], fingerprint: str
) -> tuple[dict[int, HelloReply], list[str]]:
    sites: dict[int, HelloReply] = {}
    others: list[str] = []
    for message in replies:
        node = message.metadata.src_node_id
        try:
            reply = HelloReply.from_record(message.content)
        except MalformedReply as error:
            exchange.report_fault(node, MALFORMED, f"malformed reply: {error}", step="hello")
            continue
        except ValueError:
            others.append(f"{exchange.name_of(node)} (code that introduces itself otherwise)")
            continue
        if reply.fingerprint == fingerprint:
            sites[node] = reply
        else:
            others.append(
                f"{reply.site or exchange.name_of(node)} ({printable(reply.fingerprint)})"
            )
    if not others:
        return sites, []
    return sites, [
        f"other code than this ServerApp's ({fingerprint}) runs at {some_names(others)}: "
        "update these nodes; in simulation, end the SuperLink that was started from another "
        "folder, or give each checkout its own FLWR_HOME and FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"
    ]
