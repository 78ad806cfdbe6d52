// MongoDB's tutorials as they are typed into mongosh: insert, query, update, delete, aggregate, indexes, streams.
(async () => {
  db.dropDatabase();
  const names = cursor => cursor.toArray().map(found => found.item || found.name).sort();

  await step('insert one', () => db.inventory.insertOne(
    {item: 'canvas', qty: 100, tags: ['cotton'], size: {h: 28, w: 35.5, uom: 'cm'}}).acknowledged, true);
  await step('insert many', () => Object.keys(db.inventory.insertMany([
    {item: 'journal', qty: 25, status: 'A', tags: ['blank', 'red'], dim_cm: [14, 21], size: {h: 14, w: 21, uom: 'cm'}},
    {item: 'notebook', qty: 50, status: 'A', tags: ['red', 'blank'], dim_cm: [14, 21], size: {h: 8.5, w: 11, uom: 'in'}},
    {item: 'paper', qty: 100, status: 'D', tags: ['red', 'blank', 'plain'], dim_cm: [14, 21],
      size: {h: 8.5, w: 11, uom: 'in'}},
    {item: 'planner', qty: 75, status: 'D', tags: ['blank', 'red'], dim_cm: [22.85, 30],
      size: {h: 22.85, w: 30, uom: 'cm'}},
    {item: 'postcard', qty: 45, status: 'A', tags: ['blue'], dim_cm: [10, 15.25], size: {h: 10, w: 15.25, uom: 'cm'}},
  ]).insertedIds).length, 5);
  await step('query all', () => db.inventory.find({}).count(), 6);
  await step('query equality', () => names(db.inventory.find({status: 'D'})), ['paper', 'planner']);
  await step('query in', () => names(db.inventory.find({status: {$in: ['A', 'D']}})).length, 5);
  await step('query and', () => names(db.inventory.find({status: 'A', qty: {$lt: 30}})), ['journal']);
  await step('query or', () => names(db.inventory.find({status: 'A', $or: [{qty: {$lt: 30}}, {item: /^p/}]})),
    ['journal', 'postcard']);
  await step('query embedded document', () => names(db.inventory.find({size: {h: 14, w: 21, uom: 'cm'}})), ['journal']);
  await step('query nested field', () => names(db.inventory.find({'size.h': {$lt: 15}, 'size.uom': 'in', status: 'D'})),
    ['paper']);
  await step('query array exactly', () => names(db.inventory.find({tags: ['red', 'blank']})), ['notebook']);
  await step('query array all', () => names(db.inventory.find({tags: {$all: ['red', 'blank']}})),
    ['journal', 'notebook', 'paper', 'planner']);
  await step('query array element', () => names(db.inventory.find({dim_cm: {$elemMatch: {$gt: 22, $lt: 30}}})), ['planner']);
  await step('query array index', () => names(db.inventory.find({'dim_cm.1': {$gt: 25}})), ['planner']);
  await step('query array size', () => names(db.inventory.find({tags: {$size: 3}})), ['paper']);
  await step('query missing', () => names(db.inventory.find({status: {$exists: false}})), ['canvas']);
  await step('project', () => db.inventory.find({item: 'paper'}, {item: 1, 'size.uom': 1, _id: 0}).toArray(),
    [{item: 'paper', size: {uom: 'in'}}]);
  await step('project slice', () => db.inventory.findOne({item: 'paper'}, {_id: 0, tags: {$slice: -1}}).tags, ['plain']);
  await step('update one', () => {
    db.inventory.updateOne({item: 'paper'}, {$set: {'size.uom': 'cm', status: 'P'}, $currentDate: {lastModified: true}});
    const found = db.inventory.findOne({item: 'paper'});
    return [found.size.uom, found.status, found.lastModified instanceof Date];
  }, ['cm', 'P', true]);
  await step('update many', () => db.inventory.updateMany({qty: {$lt: 50}}, {$set: {status: 'P'}}).modifiedCount, 2);
  await step('replace one', () => db.inventory.replaceOne({item: 'paper'},
    {item: 'paper', instock: [{warehouse: 'A', qty: 60}]}).modifiedCount, 1);
  await step('update with a pipeline', () => {
    db.students.insertMany([{_id: 1, quiz1: 8, quiz2: 9}, {_id: 2, quiz1: 4, quiz2: 7}]);
    db.students.updateMany({}, [{$set: {total: {$add: ['$quiz1', '$quiz2']}, modified: '$$NOW'}}]);
    return db.students.find({}, {_id: 0, total: 1}).sort({_id: 1}).toArray();
  }, [{total: 17}, {total: 11}]);
  await step('upsert', () => db.students.updateOne({_id: 9}, {$inc: {quiz1: 1}}, {upsert: true}).upsertedCount, 1);
  await step('find and modify', () => db.students.findOneAndUpdate({_id: 9}, {$inc: {quiz1: 1}},
    {returnDocument: 'after'}).quiz1, 2);
  await step('bulk write', () => {
    const done = db.students.bulkWrite([
      {insertOne: {document: {_id: 20}}}, {updateOne: {filter: {_id: 20}, update: {$set: {a: 1}}}},
      {replaceOne: {filter: {_id: 20}, replacement: {b: 1}}}, {deleteOne: {filter: {_id: 20}}}]);
    return [done.insertedCount, done.modifiedCount, done.deletedCount];
  }, [1, 2, 1]);
  await step('delete', () => [db.inventory.deleteMany({status: 'A'}).deletedCount,
    db.inventory.deleteOne({status: 'D'}).deletedCount], [1, 1]);

  db.orders.insertMany([
    {_id: 0, name: 'Pepperoni', size: 'small', price: 19, quantity: 10, date: ISODate('2021-03-13T08:14:30Z')},
    {_id: 1, name: 'Pepperoni', size: 'medium', price: 20, quantity: 20, date: ISODate('2021-03-13T09:13:24Z')},
    {_id: 2, name: 'Pepperoni', size: 'large', price: 21, quantity: 30, date: ISODate('2021-03-17T09:22:12Z')},
    {_id: 3, name: 'Cheese', size: 'small', price: 12, quantity: 15, date: ISODate('2021-03-13T11:21:39.736Z')},
    {_id: 4, name: 'Cheese', size: 'medium', price: 13, quantity: 50, date: ISODate('2022-01-12T21:23:13.331Z')},
    {_id: 5, name: 'Cheese', size: 'large', price: 14, quantity: 10, date: ISODate('2022-01-12T05:08:13Z')},
    {_id: 6, name: 'Vegan', size: 'small', price: 17, quantity: 10, date: ISODate('2021-01-13T05:08:13Z')},
    {_id: 7, name: 'Vegan', size: 'medium', price: 18, quantity: 10, date: ISODate('2021-01-13T05:10:13Z')},
  ]);
  await step('aggregate a total', () => db.orders.aggregate([
    {$match: {size: 'medium'}}, {$group: {_id: '$name', totalQuantity: {$sum: '$quantity'}}}, {$sort: {_id: 1}}]).toArray(),
  [{_id: 'Cheese', totalQuantity: 50}, {_id: 'Pepperoni', totalQuantity: 20}, {_id: 'Vegan', totalQuantity: 10}]);
  await step('aggregate by day', () => db.orders.aggregate([
    {$match: {date: {$gte: new ISODate('2020-01-30'), $lt: new ISODate('2022-01-30')}}},
    {$group: {_id: {$dateToString: {format: '%Y-%m-%d', date: '$date'}},
      totalOrderValue: {$sum: {$multiply: ['$price', '$quantity']}}, averageOrderQuantity: {$avg: '$quantity'}}},
    {$sort: {totalOrderValue: -1}}]).toArray(),
  [{_id: '2022-01-12', totalOrderValue: 790, averageOrderQuantity: 30},
    {_id: '2021-03-13', totalOrderValue: 770, averageOrderQuantity: 15},
    {_id: '2021-03-17', totalOrderValue: 630, averageOrderQuantity: 30},
    {_id: '2021-01-13', totalOrderValue: 350, averageOrderQuantity: 10}]);
  await step('lookup', () => {
    db.prices.insertMany([{name: 'Vegan', list: 20}, {name: 'Cheese', list: 15}]);
    return db.orders.aggregate([{$match: {size: 'medium'}}, {$sort: {_id: 1}},
      {$lookup: {from: 'prices', localField: 'name', foreignField: 'name', as: 'found'}},
      {$unwind: '$found'}, {$project: {_id: 0, name: 1, list: '$found.list'}}]).toArray();
  }, [{name: 'Cheese', list: 15}, {name: 'Vegan', list: 20}]);
  await step('view', () => {
    db.createView('small', 'orders', [{$match: {size: 'small'}}, {$project: {_id: 0, name: 1}}]);
    return names(db.small.find());
  }, ['Cheese', 'Pepperoni', 'Vegan']);
  await step('unique index', () => {
    db.members.createIndex({email: 1}, {unique: true});
    db.members.insertOne({email: 'ann'});
    try { db.members.insertOne({email: 'ann'}); } catch (error) { return [error.code, db.members.getIndexes().length]; }
  }, [11000, 2]);
  await step('explain', () => db.members.find({email: 'ann'}).explain().queryPlanner.winningPlan.stage, 'FETCH');
  await step('validation', () => {
    db.createCollection('people', {validator: {$jsonSchema: {required: ['name'], properties: {year: {minimum: 2017}}}}});
    db.people.insertOne({name: 'ann', year: 2020});
    try { db.people.insertOne({name: 'bob', year: 1999}); } catch (error) { return error.code; }
  }, 121);
  await step('transaction', () => {
    const session = db.getMongo().startSession();
    session.withTransaction(() => {
      const orders = session.getDatabase(db.getName()).orders;
      orders.insertOne({_id: 8});
      orders.deleteOne({_id: 0});
    });
    return [db.orders.countDocuments({_id: 8}), db.orders.countDocuments({_id: 0})];
  }, [1, 0]);
  await step('change stream', () => {
    const stream = db.orders.watch([{$match: {operationType: {$in: ['insert', 'update']}}}], {fullDocument: 'updateLookup'});
    db.orders.insertOne({_id: 30});
    db.orders.updateOne({_id: 30}, {$set: {done: true}});
    const seen = [];
    while (seen.length < 2) { const change = stream.tryNext(); if (change) seen.push(change.operationType); }
    stream.close();
    return seen;
  }, ['insert', 'update']);
  await step('show', () => [db.getCollectionInfos({name: 'small'})[0].type, db.stats().ok, db.orders.stats().ok > 0],
    ['view', 1, true]);
  await step('rename and drop', () => [db.prices.renameCollection('list').ok, db.list.drop(), db.dropDatabase().ok],
    [1, true, 1]);
  print(JSON.stringify(outcomes));
})();
