"""Properties as Erlang terms: what a broker writes for messages that it has changed (docs/formats/rabbitmq-messages.md)."""

from __future__ import annotations

from typing import Any

from penstock.errors import CorruptData, InvalidValue
from penstock.formats.rabbitmq.properties import (
    BY_LABEL,
    DEPTH_MAX,
    NAMES,
    NUMBERS,
    Decimal,
    Header,
    Kind,
    Properties,
    Table,
    Value,
)
from penstock.formats.rabbitmq.terms import FALSE, TRUE, UNDEFINED, Atom, ErlangTerm


def properties_of_term(term: ErlangTerm) -> Properties:
    """Return the properties of a ``P_basic`` tuple. Raises ``CorruptData``."""
    if not isinstance(term, tuple) or len(term) != 1 + len(NAMES) or term[0] != Atom("P_basic"):
        raise CorruptData("the properties are no P_basic of 15 elements")
    found: dict[str, Any] = {}
    for name, value in zip(NAMES, term[1:], strict=True):
        if value == UNDEFINED:
            continue
        if name == "headers":
            found[name] = _table_of_term(value, DEPTH_MAX)
        elif name not in NUMBERS:
            found[name] = bytes_of_term(value, f"the property {name}")
        elif isinstance(value, int):
            found[name] = value
        else:
            raise CorruptData(f"the property {name} is no integer")
    try:
        return Properties(**found)
    except InvalidValue as error:
        raise CorruptData(str(error)) from None


def bytes_of_term(term: ErlangTerm, what: str) -> bytes:
    """Return a binary's bytes, or those of an Erlang string, which plugins use. Raises ``CorruptData``."""
    if isinstance(term, bytes | bytearray | memoryview):
        return bytes(term)
    if isinstance(term, list) and all(isinstance(x, int) and 0 <= x <= 0xFF for x in term):
        return bytes(term)  # type: ignore[arg-type]
    raise CorruptData(f"{what} is no binary")


def _table_of_term(term: ErlangTerm, depth: int) -> Table:
    if not isinstance(term, list):
        raise CorruptData("a table of headers is no list")
    headers = []
    for item in term:
        if not isinstance(item, tuple) or len(item) != 3:
            raise CorruptData("a header is no tuple of name, type and value")
        try:
            name = bytes_of_term(item[0], "a header's name")
            headers.append(Header(name, _value_of_term(item[1], item[2], depth)))
        except InvalidValue as error:
            raise CorruptData(str(error)) from None
    return tuple(headers)


def _value_of_term(label: ErlangTerm, term: ErlangTerm, depth: int) -> Value:
    kind = BY_LABEL.get(label.name) if isinstance(label, Atom) else None
    if kind is None:
        raise CorruptData("unknown type of a header")
    if depth == 0:
        raise CorruptData(f"headers are nested more than {DEPTH_MAX} deep")
    value: Any = term
    match kind, term:
        case Kind.TABLE, _:
            value = _table_of_term(term, depth - 1)
        case Kind.ARRAY, _:
            value = _array_of_term(term, depth - 1)
        case ((Kind.TEXT | Kind.BINARY), _):
            value = bytes_of_term(term, "a header's value")
        case Kind.BOOLEAN, Atom():
            value = {TRUE: True, FALSE: False}.get(term)
        case ((Kind.FLOAT | Kind.DOUBLE), int()):
            value = float(term) if abs(term) < 1 << 63 else None
        case Kind.DECIMAL, tuple((int(scale), int(unscaled))):
            value = Decimal(scale=scale, unscaled=unscaled)
        case Kind.VOID, _:
            value = None
    return Value(kind, value)


def _array_of_term(term: ErlangTerm, depth: int) -> tuple[Value, ...]:
    if not isinstance(term, list):
        raise CorruptData("an array in the headers is no list")
    values = []
    for item in term:
        if not isinstance(item, tuple) or len(item) != 2:
            raise CorruptData("an array's element is no tuple of type and value")
        values.append(_value_of_term(item[0], item[1], depth))
    return tuple(values)


def term_of_properties(properties: Properties) -> ErlangTerm:
    """Return the ``P_basic`` tuple of some properties."""
    items: list[ErlangTerm] = [Atom("P_basic")]
    for name in NAMES:
        value = getattr(properties, name)
        if value is None:
            items.append(UNDEFINED)
        else:
            items.append(_term_of_table(value) if name == "headers" else value)
    return tuple(items)


def _term_of_table(table: Table) -> ErlangTerm:
    return [(x.name, Atom(x.value.kind.label), _term_of_value(x.value)) for x in table]


def _term_of_value(item: Value) -> ErlangTerm:
    value: Any = item.value
    match item.kind:
        case Kind.TABLE:
            return _term_of_table(value)
        case Kind.ARRAY:
            return [(Atom(x.kind.label), _term_of_value(x)) for x in value]
        case Kind.BOOLEAN:
            return TRUE if value else FALSE
        case Kind.DECIMAL:
            return (value.scale, value.unscaled)
        case Kind.VOID:
            return UNDEFINED
        case _:
            plain: ErlangTerm = value
            return plain
