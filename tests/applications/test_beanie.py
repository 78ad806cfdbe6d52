"""Beanie: typed documents whose links are fetched by `$lookup` over DBRefs, in queries, counts and deletes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from beanie import BackLink, DeleteRules, Document, Indexed, Link, WriteRules, init_beanie
from pydantic import Field
from pymongo import AsyncMongoClient, IndexModel
from pymongo.errors import DuplicateKeyError

pytestmark = pytest.mark.long


class Window(Document):
    x: int
    y: int


class Door(Document):
    height: int = 10
    window: Link[Window] | None = None


class House(Document):
    name: str
    email: Annotated[str, Indexed(unique=True)] = "x"
    windows: list[Link[Window]]
    door: Link[Door]

    class Settings:
        use_revision = True
        use_state_management = True
        indexes = [  # noqa: RUF012
            [("name", 1), ("email", -1)],
            IndexModel([("name", 1)], name="named", partialFilterExpression={"name": {"$exists": True}}),
        ]


class Person(Document):
    name: str
    house: Link[House]


class Owner(Document):
    name: str
    cars: list[BackLink[Car]] = Field(json_schema_extra={"original_field": "owner"}, default=[])


class Car(Document):
    number: int
    owner: Link[Owner]


Owner.model_rebuild()


@pytest.fixture
async def client(uri: str) -> AsyncIterator[AsyncMongoClient[dict[str, Any]]]:
    async with AsyncMongoClient(uri) as client:
        await init_beanie(database=client.town, document_models=[Window, Door, House, Person, Owner, Car])
        yield client
        await client.drop_database("town")


@pytest.fixture
async def house(client: AsyncMongoClient[dict[str, Any]]) -> House:
    windows = [Window(x=1, y=1), Window(x=2, y=2)]
    made = House(name="a", windows=windows, door=Door(window=Window(x=9, y=9)))  # type: ignore[arg-type]
    await made.insert(link_rule=WriteRules.WRITE)
    return made


async def test_links_are_fetched_and_theirs_too(house: House) -> None:
    (fetched,) = await House.find(House.name == "a", fetch_links=True).to_list()
    assert [window.x for window in fetched.windows] == [1, 2] and fetched.door.window.x == 9  # type: ignore
    plain = await House.find_one(House.name == "a")
    assert isinstance(plain, House) and isinstance(plain.door, Link)
    await plain.fetch_all_links()
    assert plain.door.height == 10  # type: ignore[attr-defined]
    await Person(name="p", house=plain).insert()  # type: ignore[arg-type]
    person = await Person.find_one(Person.house.name == "a", fetch_links=True)  # type: ignore[attr-defined]
    assert person is not None and person.house.door.window.y == 9  # type: ignore[attr-defined]


async def test_queries_look_through_links(house: House) -> None:
    for query in (House.windows.x == 2, House.door.height == 10, House.door.window.x > 8):  # type: ignore[attr-defined]
        assert len(await House.find(query, fetch_links=True).sort("-name").limit(1).to_list()) == 1
        assert await House.find(query, fetch_links=True).count() == 1
    assert await House.find(House.door.height == 11, fetch_links=True).to_list() == []  # type: ignore[attr-defined]
    assert await House.find_one(House.windows.id == house.windows[0].id)  # type: ignore[attr-defined]
    shallow = await House.find_one(House.name == "a", fetch_links=True, nesting_depth=1)
    assert shallow is not None and isinstance(shallow.door.window, Link)  # type: ignore[attr-defined]


async def test_back_links(client: AsyncMongoClient[dict[str, Any]]) -> None:
    owner = await Owner(name="o").insert()
    for number in (1, 2):
        await Car(number=number, owner=owner).insert()  # type: ignore[arg-type]
    fetched = await Owner.find_one(Owner.name == "o", fetch_links=True)
    assert fetched is not None and sorted(car.number for car in fetched.cars) == [1, 2]  # type: ignore[attr-defined]


async def test_changes_revisions_transactions_and_deletes(
    client: AsyncMongoClient[dict[str, Any]], house: House
) -> None:
    await house.set({House.name: "b"})
    house.name = "c"
    await house.save_changes()
    await House.find(House.name == "c").update({"$inc": {"n": 1}})
    pipeline = [{"$project": {"n": 1, "count": {"$size": "$windows"}}}]
    (counted,) = await House.find(House.name == "c").aggregate(pipeline).to_list()
    assert (counted["n"], counted["count"]) == (1, 2)
    with pytest.raises(DuplicateKeyError):
        await House(name="d", windows=[], door=house.door).insert()
    async with client.start_session() as session, await session.start_transaction():
        await Window(x=5, y=5).insert(session=session)
    assert await Window.find(Window.x == 5).count() == 1
    await house.delete(link_rule=DeleteRules.DELETE_LINKS)
    assert await Window.count() == 1 and await Door.count() == 0
    assert set(await client.town.House.index_information()) == {"_id_", "email_1", "name_1_email_-1", "named"}
